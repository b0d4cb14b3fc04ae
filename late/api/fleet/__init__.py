"""Workers that take tasks from each other, and the handlers that they run."""
