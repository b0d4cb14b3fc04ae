"""The cost of a load: figures, and formulas over them. Pure values."""
