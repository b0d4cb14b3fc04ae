"""`make bench-steady`: a trickle of tasks, one a transaction, as services produce it."""
