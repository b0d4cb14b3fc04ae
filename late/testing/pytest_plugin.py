"""The pytest plugin: registered by the package itself, nothing to configure.

Fixtures import what they need when they are first used: a run without them pays only for this
file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from late.app.app import App


@pytest.fixture(scope="session")
def _late_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One migrated database for the whole run: copying a file is quicker than migrating."""
    from late.schema import migrate

    path = tmp_path_factory.mktemp("late") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def late_db(_late_template: Path, tmp_path: Path) -> str:
    """URL of a SQLite database of the test's own, with the schema applied."""
    path = tmp_path / "late.db"
    shutil.copyfile(_late_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def late_app(late_db: str) -> Callable[..., App]:
    """Makes an app on `late_db`: `app = late_app(shards=1)` takes the options of `late.App`."""

    def make(**options: Any) -> App:
        from late.app.app import App

        return App(late_db, **options)

    return make
