"""Migrations, statements and addresses of Spanner databases."""
