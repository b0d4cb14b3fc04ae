"""Limit what starts, and keep the ready tasks that wait for it. Pure."""
