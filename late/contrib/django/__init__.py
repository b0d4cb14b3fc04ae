"""`late` in a Django project: put `"late.contrib.django"` into `INSTALLED_APPS`.

`app` is the project's `late.App`. Its database is `DATABASES[LATE["DATABASE"]]`, so that tasks
commit together with the project's models.
"""

from __future__ import annotations

from late.contrib.django.application import make_app

__all__ = ["app"]

app = make_app()
