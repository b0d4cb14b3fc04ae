"""The schema of `late`, once, as data (`tables.py`), and its version (`version.py`)."""
