"""Attempts that another worker runs, because the owner of their shard cannot."""
