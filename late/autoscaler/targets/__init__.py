"""What the autoscaler sets: Spanner instances, lanes, a command."""
