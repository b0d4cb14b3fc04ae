"""Scripts and styles: read once, checked by their sums, sent compressed.

The sums of vendored files are in `static/vendor/CHECKSUMS`, in the format of `sha256sum -c`. Each
name contains the sum of its file, so a browser may keep files for ever and never uses an old one.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from late.errors import ConfigError

KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
OWN = ("late.css", "late.js", "late.svg")
_SUM_SHOWN = 12


class File(msgspec.Struct, frozen=True):
    """One file as it is sent."""

    name: str
    """The name with the sum, such as `late-0123456789ab.css`."""
    kind: str
    plain: bytes
    packed: bytes
    """The contents, compressed by gzip."""


def load() -> tuple[dict[str, File], dict[str, str]]:
    """Read all files.

    Returns them by the name under which they are sent, and those names by the plain ones.

    Raises:
        ConfigError: a vendored file has changed since it was added.
    """
    folder = files("late.web") / "static"
    vendor = folder / "vendor"
    found: dict[str, File] = {}
    names: dict[str, str] = {}
    for line in (vendor / "CHECKSUMS").read_text("ascii").splitlines():
        digest, _, name = line.partition("  ")
        _add(found, names, vendor / name, name, digest)
    for name in OWN:
        _add(found, names, folder / name, name, None)
    return found, names


def _add(
    found: dict[str, File], names: dict[str, str], at: Traversable, name: str, digest: str | None
) -> None:
    content = at.read_bytes()
    actual = hashlib.sha256(content).hexdigest()
    if digest not in (None, actual):
        raise ConfigError(f"late/web/static/vendor/{name} was changed: its SHA-256 is {actual}")
    stem, dot, end = name.rpartition(".")
    sent = f"{stem}-{actual[:_SUM_SHOWN]}{dot}{end}"
    names[name] = sent
    found[sent] = File(sent, KINDS[dot + end], content, gzip.compress(content, 9, mtime=0))
