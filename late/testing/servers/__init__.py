"""Private servers and databases for tests and the demo."""
