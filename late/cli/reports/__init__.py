"""`late report` and what belongs to it."""
