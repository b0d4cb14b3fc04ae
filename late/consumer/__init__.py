"""The client of `late serve`: it pulls tasks and runs handlers for them."""
