"""Lanes: list, create, resize."""
