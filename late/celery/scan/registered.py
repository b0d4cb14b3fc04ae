"""Compare what a scan found with the tasks that a real app of Celery has registered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from late.celery.scan.report import Scan, scan
from late.errors import ConfigError


def scan_app(app: Any, module_name: str) -> Scan:
    """Scan the source of an app's package, and note what only the app knows.

    Args:
        app: Celery's app, imported by the caller: `late` itself does not need Celery.
        module_name: the module that it came from.

    Raises:
        ConfigError: it is no app of Celery. What its modules raise is passed on.
    """
    if not all(hasattr(app, part) for part in ("loader", "finalize", "tasks")):
        raise ConfigError(f"a {type(app).__name__} is no app of Celery")
    app.loader.import_default_modules()
    app.finalize(auto=True)
    names = set(app.tasks)
    package = module_name.partition(".")[0]
    found = scan(_source_of(package))
    seen = {task.name for task in found.tasks}
    seen |= {f"{package}.{name}" for name in seen}  # a folder without `__init__.py`
    found.unseen = sorted(n for n in names - seen if not n.startswith("celery."))
    return found


def _source_of(package: str) -> Path:
    """Return the folder of a package, or the file of a module without one."""
    module = sys.modules[package]
    if module.__file__ is None:
        return Path(next(iter(module.__path__)))
    path = Path(module.__file__)
    return path.parent if path.name == "__init__.py" else path
