"""The schema on Spanner: migrations, statements, addresses, deadlines and errors."""
