"""A worker process: its wiring, pools, settings and duties in the background."""
