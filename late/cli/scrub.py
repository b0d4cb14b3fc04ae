"""The one place that keeps passwords out of what the command line writes.

`scrubbed` stands around every command. On stderr it hides the passwords of URLs and named secrets;
on stdout only those of URLs, because a payload or a configuration that was asked for is data.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO, cast

from late.observability.logs import redact, redact_urls


class _Scrubbing:
    """A text stream whose writes are scrubbed; all else is the stream's own."""

    def __init__(self, inner: TextIO, scrub: Callable[[str], str]) -> None:
        self._inner = inner
        self._scrub = scrub

    def write(self, text: str) -> int:
        self._inner.write(self._scrub(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def scrubbed() -> Iterator[None]:
    """Scrub stdout and stderr in the block, and the traceback of an error that leaves it."""
    out, err = sys.stdout, sys.stderr
    mine_out = cast(TextIO, _Scrubbing(out, redact_urls))
    mine_err = cast(TextIO, _Scrubbing(err, redact))
    sys.stdout, sys.stderr = mine_out, mine_err
    try:
        yield
    except Exception:
        sys.excepthook = _hook  # Python shows the error when the streams are its own again.
        raise
    finally:
        # A test or a program may have put other streams there meanwhile.
        if sys.stdout is mine_out:
            sys.stdout = out
        if sys.stderr is mine_err:
            sys.stderr = err


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(redact("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr, end="")
