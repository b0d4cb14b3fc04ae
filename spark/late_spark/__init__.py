"""Reports on a `late` deployment, by DuckDB or Spark: what the work cost, and how fast it flowed.

Needs the extra `late-queue[reports]`; with Spark `late-queue[spark]` and Java. Everything is a
function of frames in the shapes of `schema.py`, whether a live store, the lake or generated data
is behind them.
"""
