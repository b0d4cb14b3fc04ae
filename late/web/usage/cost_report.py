"""The last cost report, for the screen of usage: a folder that `late report cost --out` wrote.

Such a folder was made elsewhere, and contains texts of others. It is therefore shown in a sandbox,
where no script runs and nothing of this page can be reached. No part of a URL becomes a path: only
the newest report is shown, and links that lead out of the folder are skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from late.errors import ConfigError

MANIFEST, PAGE = "report.json", "index.html"
"""The files that every report's folder has; see `late_spark.folder`."""
MANIFEST_BYTES, PAGE_BYTES = 64 * 1024, 16 * 1024 * 1024
LOOKED_AT = 100
"""The newest folders that are read; some may be reports of other kinds."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        " form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # A browser refuses a sandboxed page that asks for a browsing context group of its own.
    "Cross-Origin-Opener-Policy": "unsafe-none",
    "Referrer-Policy": "no-referrer",
}


class _About(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    report: str
    from_: str = ""
    to: str = ""
    currency: str = ""


class Report(msgspec.Struct, frozen=True):
    """One cost report. Its texts are unchanged, and not yet escaped."""

    folder: Path
    from_: str
    to: str
    """`from_` and `to` are days."""
    currency: str
    written_us: int


class Reports:
    """The reports of one folder. All calls read files, and block.

    Raises:
        ConfigError: there is no such folder, or it cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            self._root = Path(folder).resolve(strict=True)
            os.listdir(self._root)
        except (OSError, RuntimeError) as error:
            told = getattr(error, "strerror", None) or error
            raise ConfigError(f"--reports {str(folder)[:200]}: {told}") from None

    def newest(self) -> Report | None:
        """The cost report that was written last; None if there is none."""
        found = sorted(self._written(), reverse=True)[:LOOKED_AT]
        return next(filter(None, (self._report(path, at) for at, path in found)), None)

    def page(self) -> bytes | None:
        """The newest report's page, as HTML; None if there is none, or if it is too long."""
        report = self.newest()
        return None if report is None else self._read(report.folder / PAGE, PAGE_BYTES)

    def _written(self) -> Iterator[tuple[int, Path]]:
        try:
            entries = os.listdir(self._root)
        except OSError:
            return  # the folder was there when this process began, and is gone now
        for name in entries:
            if name.startswith("."):
                continue  # it is being written
            try:
                yield (self._root / name / MANIFEST).stat().st_mtime_ns, self._root / name
            except OSError:
                continue

    def _report(self, folder: Path, at_ns: int) -> Report | None:
        text = self._read(folder / MANIFEST, MANIFEST_BYTES)
        try:
            about = msgspec.json.decode(text or b"", type=_About)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None  # not JSON, not of a report, not UTF-8, or nested too deeply
        if about.report != "cost":
            return None
        return Report(folder, about.from_, about.to, about.currency, at_ns // 1_000)

    def _read(self, path: Path, most: int) -> bytes | None:
        """Read a whole file below the folder, up to `most` bytes; None for anything else."""
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(self._root):
                return None
            # O_NONBLOCK, because to open a pipe would otherwise wait for ever.
            descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return None
                # closefd=False: for a folder, `open` would raise and leave the descriptor open.
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read(most + 1)
            finally:
                os.close(descriptor)
        except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
            return None
        return content if len(content) <= most else None
