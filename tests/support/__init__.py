"""What several suites share: histories of runs and their checker."""
