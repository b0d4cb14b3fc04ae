"""Celery's calls on `late`, and what helps to move from Celery.

`scan/` reads the source of a project that uses Celery, and says what of it works here.
"""
