"""The schema of `late`: its tables as data (`tables.py`), its version and its migrations."""
