"""Handlers with `transaction=True`: several share a transaction, and their settlement commits in
it. `pool.py` takes attempts, `turn_queue.py` puts them together, `run.py` is one transaction."""
