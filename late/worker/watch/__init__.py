"""Self-watching of a worker: liveness, stalls, lag and refused writes."""
