"""Admission of callers: tokens, certificates, sign-ins, and the bounds of connections."""
