"""A clock of a server that can be set, by libfaketime."""

from __future__ import annotations

import os
from pathlib import Path

FAKETIME_VARIABLE = "LATE_TEST_FAKETIME"
"""The path of the library."""


def find_faketime() -> str | None:
    """Find the library; None if it is not installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else None


class Clock:
    """The clock of a server, seconds apart from this machine's."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        self._file.touch()
        # The server runs as another user.
        folder.chmod(0o755)
        self._file.chmod(0o644)
        self.shift(0)

    def shift(self, seconds: int) -> None:
        self._file.write_text(f"{seconds:+d}\n")

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": os.environ[FAKETIME_VARIABLE],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }
