"""Django's own tests of `django.tasks`, against the backend of `late`. It is run by hand:

    pip download --no-binary :all: --no-deps django==6.0 && tar xf django-6.0.tar.gz
    python -m tests.support.django_suite django-6.0

Their sources are read and not kept: a copy in a temporary folder names our backends in place of
Django's. `Dummy` is `LateBackend` with a list of its results, for the tests of Django's dummy
backend; `Immediate` works until nothing is left after each task, for those of the immediate one.
With a Django older than 6.0 the copy imports `django_tasks`. docs/django.md has what passes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import django
from django.conf import settings

HERE = "tests.support.django_suite"
NAMES = {"dummy": "Dummy", "immediate": "Immediate"}


def copy(source: Path, folder: Path) -> None:
    """Write the tests in `source` into the package `tasks` of `folder`, with our backends."""
    (folder / "tasks").mkdir()
    for path in source.glob("*.py"):
        text = path.read_text()
        for module, ours in NAMES.items():
            theirs = f"django.tasks.backends.{module}"
            name = f"{ours}Backend"
            text = text.replace(f'"{theirs}.{name}"', f'"{HERE}.{ours}"')
            taken = f"from {HERE} import {ours} as {name}"
            text = text.replace(f"from {theirs} import {name}", taken)
        # A SimpleTestCase may not touch a database, and theirs need none.
        text = text.replace("(SimpleTestCase):", '(SimpleTestCase):\n    databases = "__all__"\n')
        if django.VERSION < (6,):
            text = text.replace("django.tasks", "django_tasks")
        (folder / "tasks" / path.name).write_text(text)


def main(source: Path) -> int:
    """Run them on a new SQLite database, and return how many failures there were."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(source / "tests" / "tasks", folder)
        sys.path.insert(0, name)
        file = {"ENGINE": "django.db.backends.sqlite3", "NAME": name + "/late.db"}
        options = {"OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"}}
        settings.configure(
            DATABASES={"default": file | options | {"TEST": {"NAME": name + "/test.db"}}},
            INSTALLED_APPS=["django.contrib.contenttypes", "late.contrib.django"],
            TASKS={"default": {"BACKEND": f"{HERE}.Dummy", "QUEUES": []}},
            USE_TZ=True,
        )
        django.setup()
        from django.test.runner import DiscoverRunner

        return DiscoverRunner(top_level=name).run_tests(["tasks"])


def __getattr__(name: str) -> Any:
    """Make the backends once the settings are there."""
    from late.contrib.django import app
    from late.contrib.django.backend import LateBackend
    from late.testing import drain

    class Dummy(LateBackend):
        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.results: list[Any] = []

        def enqueue(self, *args: Any, **kwargs: Any) -> Any:
            self.results.append(super().enqueue(*args, **kwargs))
            return self.results[-1]

        def clear(self) -> None:
            self.results.clear()

    class Immediate(LateBackend):
        def enqueue(self, *args: Any, **kwargs: Any) -> Any:
            result = super().enqueue(*args, **kwargs)
            drain(app)
            result.refresh()
            return result

    found = {"Dummy": Dummy, "Immediate": Immediate}
    if name not in found:
        raise AttributeError(name)
    globals().update(found)
    return found[name]


if __name__ == "__main__":
    from tests.support import django_suite  # The settings name the backends by this module's path.

    sys.exit(min(django_suite.main(Path(sys.argv[1])), 1))
