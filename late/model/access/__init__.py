"""Rights: who sends a request, what its token allows, and what a route asks. Pure values."""
