"""`late bench`: a short measurement on a database of the user."""
