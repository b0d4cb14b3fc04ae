"""What the stores share."""
