"""The producer's side: the app, its tasks, their options and calls."""
