"""The interface between the autoscaler and the thing that it sizes."""

from __future__ import annotations

from typing import Protocol

from late.errors import LateError


class ResizeError(LateError):
    """A resize, or the question for the size, that did not work."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause
        """A short word of few values: PERMISSION_DENIED, timed out, exit 3."""


class PendingResize(Protocol):
    """A resize under way."""

    def done(self) -> bool:
        """Whether it is over, without waiting.

        Raises:
            ResizeError: it is, and it failed.
        """


class Sizer(Protocol):
    """One database that can be sized. Calls may block for as long as their time-out."""

    @property
    def name(self) -> str:
        """For people, and the name of its controller unless another is given."""

    def size(self) -> int:
        """The present size.

        Raises:
            ResizeError: it could not be found out.
        """

    def resize(self, before: int, size: int) -> PendingResize:
        """Begin a resize.

        Raises:
            ResizeError: it was refused, or nobody knows whether it began; the next look asks for
                the size again.
        """


class CompletedResize:
    """A resize that was over when it returned."""

    def done(self) -> bool:
        return True
