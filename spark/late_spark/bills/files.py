"""The files of bills: what a `--bill` names, and what kind each file is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from late.errors import ConfigError

_MANIFEST = "manifest.json"
"""The end of the name of a list of parts, which some clouds put beside them."""


def deliveries(paths: Sequence[Path]) -> list[tuple[Path, list[Path]]]:
    """Return each `--bill` with its files: of a folder all of them, ascending.

    The files of one folder are parts of one delivery.

    Raises:
        ConfigError: one is given twice, or a folder has none.
    """
    found: list[tuple[Path, list[Path]]] = []
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise ConfigError(f"bill {path} is given twice")
        found.append((path, _parts(path) if path.is_dir() else [path]))
    return found


def every(paths: Sequence[Path]) -> list[Path]:
    """Return the files of all bills."""
    return [file for _, parts in deliveries(paths) for file in parts]


def _parts(folder: Path) -> list[Path]:
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(name[0] in "._" for name in path.relative_to(folder).parts)
        and not path.name.lower().endswith(_MANIFEST)
    ]
    if not found:
        raise ConfigError(f"bill {folder} is a folder without files: give the one with its parts")
    return found
