"""Frameworks that `late` fits into, one folder each. A folder needs its framework installed."""
