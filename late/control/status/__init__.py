"""What is going on: queues, owners, timers, a task, usage, the server."""
