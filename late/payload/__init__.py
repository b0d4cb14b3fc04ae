"""Payloads, the bytes of arguments: their encoding, their seals, and commands."""
