"""Pure values: they know nothing but errors and each other."""
