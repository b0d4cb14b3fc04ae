"""The pytest plugin. The package registers it; it needs no configuration.

Fixtures import other modules when they are first used. A run without them imports only this file.
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
    """One migrated database for the whole run. A copy of its file is quicker than a migration."""
    from late.schema import migrate

    path = tmp_path_factory.mktemp("late") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def late_db(_late_template: Path, tmp_path: Path) -> str:
    """The URL of a new SQLite database for the test, with the schema."""
    path = tmp_path / "late.db"
    shutil.copyfile(_late_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def late_app(late_db: str) -> Callable[..., App]:
    """A function that makes an app on `late_db`: `late_app(shards=1)`. It takes `App`'s options."""

    def make(**options: Any) -> App:
        from late.app.app import App

        return App(late_db, **options)

    return make
