"""The last cost report, for the screen of usage: a folder that `late report cost --out` wrote.

What is in such a folder was made elsewhere, and texts of others are in it. So it is shown as a
stranger's page: in a sandbox, where no script runs and nothing of this page can be reached. Nothing
of an address becomes a path: only the newest report is shown, and what leads out of the folder by a
link is passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from late.errors import ConfigError

MANIFEST, PAGE = "report.json", "index.html"
"""What every report's folder has; see `late_spark.folder`."""
MANIFEST_BYTES, PAGE_BYTES = 64 * 1024, 16 * 1024 * 1024
LOOKED_AT = 100
"""Folders, the newest first: there may be reports of other kinds among them."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        " form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # A browser refuses a sandboxed page that asks for a group of windows of its own.
    "Cross-Origin-Opener-Policy": "unsafe-none",
    "Referrer-Policy": "no-referrer",
}


class _About(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    report: str
    from_: str = ""
    to: str = ""
    currency: str = ""


class Report(msgspec.Struct, frozen=True):
    """One cost report. The texts are as they were found."""

    folder: Path
    from_: str
    to: str
    """Days."""
    currency: str
    written_us: int


class Reports:
    """Those of one folder. All calls read files, and block.

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
        """The cost report that was written last; None where there is none."""
        found = sorted(self._written(), reverse=True)[:LOOKED_AT]
        return next(filter(None, (self._report(path, at) for at, path in found)), None)

    def page(self) -> bytes | None:
        """Its page, as HTML; None where there is none, or one that is longer than a report's is."""
        report = self.newest()
        return None if report is None else self._read(report.folder / PAGE, PAGE_BYTES)

    def _written(self) -> Iterator[tuple[int, Path]]:
        try:
            entries = os.listdir(self._root)
        except OSError:
            return  # it was there when this process began; what is gone is no report
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
            return None  # not JSON, not a report's, not UTF-8, or nested too deep
        if about.report != "cost":
            return None
        return Report(folder, about.from_, about.to, about.currency, at_ns // 1_000)

    def _read(self, path: Path, most: int) -> bytes | None:
        """A whole file below the folder, up to a length; None for anything else."""
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(self._root):
                return None
            # Not to wait for ever at a pipe that somebody has put there.
            descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return None
                # It closes nothing: of a folder it would raise and leave the descriptor open.
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read(most + 1)
            finally:
                os.close(descriptor)
        except (OSError, RuntimeError):  # the second: a link to itself, before Python 3.13
            return None
        return content if len(content) <= most else None
