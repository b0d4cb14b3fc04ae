"""Tasks by their state: list them, and cancel or reschedule all that match."""
