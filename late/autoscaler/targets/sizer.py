"""The interface between the autoscaler and the thing that it sizes."""

from __future__ import annotations

from typing import Protocol

from late.errors import LateError


class ResizeError(LateError):
    """A resize failed, or the size could not be read."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause
        """A short word of few values: PERMISSION_DENIED, timed out, exit 3."""


class PendingResize(Protocol):
    """A resize under way."""

    def done(self) -> bool:
        """Return True once it has ended; do not wait.

        Raises:
            ResizeError: it has ended and failed.
        """


class Sizer(Protocol):
    """One thing that can be sized. Calls may block for as long as their time-out."""

    @property
    def name(self) -> str:
        """The name for people, and for its controller unless another is given."""

    def size(self) -> int:
        """Read the present size.

        Raises:
            ResizeError: it could not be read.
        """

    def resize(self, before: int, size: int) -> PendingResize:
        """Begin a resize.

        Raises:
            ResizeError: it was refused, or it is unknown whether it began; the next look reads the
                size again.
        """


class CompletedResize:
    """A resize that had ended when the call returned."""

    def done(self) -> bool:
        return True
