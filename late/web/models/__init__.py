"""What each screen shows, made from what was read. Pure."""
