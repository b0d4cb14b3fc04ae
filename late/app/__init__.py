"""What a producer sees: the app, its tasks, their options and calls."""
