"""The overload laboratory: how the fleet behaves while something else is in trouble, with the knobs
and without them."""
