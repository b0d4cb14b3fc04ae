"""Things that the autoscaler can size: Spanner instances, lanes, and any other by a command."""
