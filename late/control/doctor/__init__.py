"""`late doctor`: what is wrong with a database and what helps."""
