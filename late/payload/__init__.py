"""Bytes of arguments: encoding, seals, commands."""
