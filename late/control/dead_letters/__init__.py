"""Dead letters: list, redrive, purge, and a dry run of these."""
