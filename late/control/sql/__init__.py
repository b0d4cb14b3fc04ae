"""Statements that ask about many shards at once."""
