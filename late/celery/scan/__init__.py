"""Read the source of a project that uses Celery, and say what of it works with `late.celery`.

`features.py` is the table of verdicts, with `setting_features.py` and `twins.py` (imports).
`project.py` reads files and resolves names, `finder.py` knows apps and classes, `tasks.py`,
`calls.py` and `refused.py` find what is used, `sources.py` and `settings.py` the settings,
`report.py` adds it up, and `registered.py` compares it with an app.
"""
