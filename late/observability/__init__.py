"""Logs, traces, metrics, alert rules."""
