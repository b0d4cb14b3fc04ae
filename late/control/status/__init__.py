"""The state of everything: queues, owners, timers, a task, usage, the server."""
