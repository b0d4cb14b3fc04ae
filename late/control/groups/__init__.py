"""Consumer groups: create, reset, delete, retention, lag."""
