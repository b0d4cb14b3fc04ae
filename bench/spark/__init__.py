"""Measurements of the reports: `python -m bench.spark.cost`."""
