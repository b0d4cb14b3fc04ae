"""`late` in a Django project: put `"late.contrib.django"` into `INSTALLED_APPS`.

`app` is the project's `late.App`. Its database is `DATABASES[LATE["DATABASE"]]`, so that tasks
commit together with the project's models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from late.app.app import App

    app: App

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Make the app when it is first asked for, and not when this package is imported.

    To make it reads the settings. These may import this package: Django's way for Celery has the
    app of Celery in the package of the project, and that app asks for this one.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from late.contrib.django.application import make_app

    made = make_app()
    return globals().setdefault("app", made)  # The settings may have asked for it meanwhile.
