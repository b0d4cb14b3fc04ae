"""The list of what is wrong, why, and what helps, for all who show it."""
