"""What is wrong, why, and what helps: one list for the overview, `late top` and `late doctor`."""
