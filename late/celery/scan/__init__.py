"""Read the source of a project that uses Celery, and say what of it works with `late.celery`.

`features.py` is the table of verdicts, `project.py` reads files and resolves names, `tasks.py` and
`calls.py` find what is used, `settings.py` the settings, `report.py` adds it up.
"""
