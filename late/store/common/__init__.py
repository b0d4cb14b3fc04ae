"""Parts that several stores use."""
