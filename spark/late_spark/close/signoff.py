"""The sign-off of a close: one hash over all that went in and all that came out.

Whoever has the same inputs gets the same hash. The pages show it and are hashed themselves, with
zeros in its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date
from fractions import Fraction
from pathlib import Path

import msgspec

from late.errors import ConfigError
from late_spark import folder
from late_spark.drivers import Used

FILE = "signoff.json"
PAGE = "index.html"
PLACE = "0" * 64
"""Stands in the page for the hash until it is known."""


class SignOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SHA-256 of each, by name."""

    month: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    hash: str


def make(month: str, inputs: Mapping[str, str], made: Path) -> SignOff:
    """Hash the files of a folder whose pages have `PLACE`, and put the hash into the pages."""
    outputs = {path.relative_to(made).as_posix(): of_file(path) for path in _files(made)}
    text = json.dumps([month, sorted(inputs.items()), sorted(outputs.items())])
    total = hashlib.sha256(text.encode()).hexdigest()
    for page in made.rglob("*.html"):
        page.write_text(page.read_text(encoding="utf-8").replace(PLACE, total), encoding="utf-8")
    found = SignOff(month, dict(inputs), outputs, total)
    (made / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return found


def read(place: Path) -> SignOff | None:
    """Read the sign-off of a close; None where there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    path = place / FILE
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=SignOff)
    except (OSError, msgspec.MsgspecError):
        raise ConfigError(f"{path} cannot be read: --force makes the close anew") from None


def altered(place: Path, signed: SignOff) -> list[str]:
    """Return the files of a close that are not as they were signed."""
    found = []
    for name, digest in sorted(signed.outputs.items()):
        path = place / name
        if not path.is_file():
            found.append(f"{name} is gone")
            continue
        content = path.read_bytes()
        if path.suffix == ".html":
            content = content.replace(signed.hash.encode(), PLACE.encode())
        if hashlib.sha256(content).hexdigest() != digest:
            found.append(f"{name} was altered by hand")
    return found


def differences(before: SignOff, after: SignOff) -> list[str]:
    """Say what changed from one close to the other: inputs first, which are the cause."""
    found = []
    for what, old, new in (
        ("input", before.inputs, after.inputs),
        ("output", before.outputs, after.outputs),
    ):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                how = "new" if name not in old else "gone" if name not in new else "changed"
                found.append(f"{what} {name} {'is ' if how != 'changed' else ''}{how}")
    return found


def of_file(path: Path) -> str:
    """Hash a file without reading it whole.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def of_usage(used: Iterable[Used]) -> str:
    """Hash the work by day and key: the same from a database, a lake and files."""
    found = hashlib.sha256()
    for row in used:
        numbers = [getattr(row, name) for name in Used.__slots__[2:]]
        found.update(json.dumps([str(row.day), row.key, numbers]).encode())
    return found.hexdigest()


def of_counts(values: Mapping[date, Mapping[str, Fraction]]) -> str:
    """Hash what handlers have counted, by day and tenant."""
    rows = [(str(day), sorted((name, str(number)) for name, number in of.items()))
            for day, of in sorted(values.items())]  # fmt: skip
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _files(made: Path) -> list[Path]:
    names = (FILE, folder.MANIFEST)
    return sorted(path for path in made.rglob("*") if path.is_file() and path.name not in names)
