"""A policy beside its rivals on recorded and made loads."""
