"""A past moment, as the database's own versions tell of it, or else the journal."""
