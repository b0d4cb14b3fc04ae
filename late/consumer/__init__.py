"""The client of `late serve`: pulls tasks and runs handlers for them."""
