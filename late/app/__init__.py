"""The parts that a producer uses: the app, its tasks, their options and calls."""
