"""A report's folder: there as a whole or not at all, and never over something else.

Everything is written beside the final place and renamed at the end. Whoever finds the folder finds
a whole report in it, even if the process was killed while it wrote.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from late.errors import ConfigError

MANIFEST = "report.json"
"""In every report's folder: what it is. `--force` replaces only a folder that has one."""


def check(target: Path, *, force: bool) -> None:
    """Refuse before the work what would be refused after it.

    Raises:
        ConfigError: there is a report and not `force`; or there is something that is no report; or
            the place cannot be written.
    """
    try:
        _writable(target)
    except OSError as error:
        raise ConfigError(f"--out {target}: {error.strerror}") from None
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not (target.is_dir() and (target / MANIFEST).is_file()):
        raise ConfigError(f"--out {target} exists and is not a report: choose another name")
    if not force:
        raise ConfigError(f"--out {target} has a report: --force replaces it")


def _writable(target: Path) -> None:
    """A report takes minutes: whether its place can be written is found before them."""
    place = Path(os.path.abspath(target)).parent
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"--out {target}: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {target}: {place} cannot be written")


@contextmanager
def writing(target: Path, about: dict[str, object], *, force: bool) -> Iterator[Path]:
    """A folder to write into; it becomes `target` if the block ends without an error.

    Args:
        about: what the report is, for its `report.json`.

    Raises:
        ConfigError: see `check`; or the place cannot be written.
    """
    target = Path(os.path.abspath(target))
    check(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise ConfigError(f"--out {target}: {error.strerror}") from None
    try:
        yield draft
        text = json.dumps(about, indent=2, sort_keys=True, default=str)
        (draft / MANIFEST).write_text(text + "\n", encoding="utf-8")
        # A private folder is what mkdtemp makes; a report is for whoever may read its place.
        draft.chmod(0o777 & ~_umask())
        _put(draft, target, force=force)
    except OSError as error:
        raise ConfigError(f"--out {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put(draft: Path, target: Path, *, force: bool) -> None:
    """Rename. Somebody may have written a report there in the meantime: it is checked again."""
    check(target, force=force)
    if not target.exists():
        draft.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    old = aside / "report"
    target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        old.rename(target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
