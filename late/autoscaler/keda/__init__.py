"""The number of workers that a fleet needs, reported to KEDA."""
