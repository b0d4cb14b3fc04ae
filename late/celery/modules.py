"""The modules with the tasks of an app, which a worker imports when it starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TypeAlias

from late.celery.settings import Settings

Packages: TypeAlias = Iterable[str] | Callable[[], Iterable[str]] | None


class Modules:
    """The list of what to import: `imports`, `include`, and modules of packages, by their name."""

    def __init__(self, conf: Settings) -> None:
        self._conf = conf
        self._wanted: list[tuple[Packages, str | None]] = []

    def discover(self, packages: Packages, related_name: str | None) -> None:
        """Note packages whose modules `related_name` are to be imported."""
        listed = packages if packages is None or callable(packages) else tuple(packages)
        self._wanted.append((listed, related_name))

    def load(self) -> None:
        """Import all of it. Modules that are imported already are not imported again."""
        for name in (*self._conf.imports, *self._conf.include):
            import_module(name)
        for packages, related_name in self._wanted:
            for package in _names(packages):
                _import_related(package, related_name)


def _names(packages: Packages) -> Iterator[str]:
    if packages is not None:
        yield from packages() if callable(packages) else packages
    elif (django := sys.modules.get("django.apps")) is not None:
        yield from [config.name for config in django.apps.get_app_configs()]


def _import_related(package: str, name: str | None) -> None:
    """Import a module of a package; a package without one is left out.

    An error within the module is its own, and is passed on.
    """
    import_module(package)
    wanted = f"{package}.{name}"
    if name is None:
        return
    try:
        import_module(wanted)
    except ModuleNotFoundError as error:
        if error.name != wanted:
            raise
