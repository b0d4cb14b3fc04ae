"""Reports about a `late` deployment, on Spark: what the work cost, and how fast it flowed.

Needs the extra `late-queue[spark]` and Java. Everything is a function of frames in the shapes of
`schema.py`, whether a live store, the lake or generated data is behind them.
"""
