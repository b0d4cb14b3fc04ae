"""Sources of the load that the autoscaler reads: Google's Cloud Monitoring, or a file."""
