"""Trace the calls of Python that a path through `late` takes, and the files that they are in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Self

import late

ROOT = str(Path(late.__file__).parent) + "/"
"""The folder of the package, by which its functions are told from others."""


class Trace:
    """The calls of functions of `late` in this thread between `start` and `stop`.

    Attributes:
        calls: (file below `late/`, qualified name) of each, in their order. A generator counts each
            time that it goes on.
        roots: the qualified name of the outermost function of `late` around each of them: the loop
            that it is a part of.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.roots: list[str] = []

    def start(self) -> None:
        """Forget earlier calls and note those that follow."""
        self.calls, self.roots = [], []
        sys.setprofile(self._note)

    def stop(self) -> list[tuple[str, str]]:
        """Return the calls since `start`."""
        sys.setprofile(None)
        return self.calls

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def functions(self) -> set[tuple[str, str]]:
        """The functions that have a name of their own; Python 3.14 gives one to annotations too."""
        return {call for call in self.calls if not call[1].endswith((">", "__annotate__"))}

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            self.calls.append((code.co_filename.removeprefix(ROOT), code.co_qualname))
            around: FrameType | None = frame
            while around is not None:
                if around.f_code.co_filename.startswith(ROOT):
                    code = around.f_code
                around = around.f_back
            self.roots.append(code.co_qualname)
