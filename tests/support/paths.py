"""Count the calls of Python that a path through `late` takes, and the files that they are in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import late

ROOT = str(Path(late.__file__).parent) + "/"


def traced(run: Callable[[], object]) -> tuple[list[str], set[str]]:
    """Run `run` in this thread; each call of a function of `late` as `file:function`, in their
    order, and the files. A generator counts each time that it goes on."""
    calls: list[str] = []
    files: set[str] = set()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            file = name.removeprefix(ROOT)
            files.add(file)
            calls.append(f"{file}:{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls, files
