"""Private servers and databases for tests, the demo and measurements."""
