"""Where the autoscaler reads the load: Cloud Monitoring, or a file."""
