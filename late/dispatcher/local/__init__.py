"""Attempts in this process, in threads and in child processes."""
