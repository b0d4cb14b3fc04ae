"""Stores: one class per database behind the seam of `base.py`. Imported lazily, by URL."""
