"""Attempts that consumers fetch."""
