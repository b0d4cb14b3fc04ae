"""Shapes of tasks, from the plain no-op to an ordinary handler, measured beside each other."""
