"""The seam between the dispatcher and a registered function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Protocol

from late.handler.classify import RetryRule
from late.model.task import Options, Record

TIMEOUT_S = 300.0
"""Time-out of an attempt whose handler names none."""
UNKNOWN_S = 0.001
"""The time that an attempt of a `def` handler is expected to take before it is known."""


class Handler(Protocol):
    """A function and how it is run. `late.Task` satisfies it."""

    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def timeout_s(self) -> float | None:
        """The time that one attempt may stay silent; None asks for `TIMEOUT_S`."""

    @property
    def is_async(self) -> bool: ...
    @property
    def process(self) -> bool:
        """Run in a child process. Only for functions that are not `is_async`."""

    @property
    def wants_context(self) -> bool:
        """True if the first argument is a `late.Context` or `late.AsyncContext`."""

    @property
    def retry(self) -> RetryRule | None: ...
    @property
    def soft_timeout_s(self) -> float | None:
        """The silence after which `SoftTimeLimit` is raised in the handler; None: it is not."""

    @property
    def overlap_on_timeout(self) -> bool:
        """True if a repeat may start while a run that cannot be ended goes on."""

    def decode(self, record: Record, options: Options | None) -> Mapping[str, Any]:
        """The keyword arguments.

        Raises:
            DecodeError: the payload cannot be read; its `reason` is the dead letter's.
        """


class Bound:
    """A handler with its attributes looked up once: the path of a no-op task counts in
    microseconds, and each property of a registered task would be a call of its own.
    """

    __slots__ = (
        "attempts_max",
        "decode",
        "fn",
        "handler",
        "is_async",
        "mean_s",
        "name",
        "overlaps",
        "patience_s",
        "process",
        "rule",
        "soft_timeout_s",
        "timeout_s",
        "wants_context",
    )

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.name = handler.name
        self.fn = handler.fn
        self.decode = handler.decode
        self.timeout_s = TIMEOUT_S if handler.timeout_s is None else handler.timeout_s
        self.is_async = handler.is_async
        self.process = handler.process
        self.mean_s = UNKNOWN_S
        """The time that an attempt has taken in a thread, of late."""
        self.wants_context = handler.wants_context
        self.overlaps = handler.overlap_on_timeout
        self.soft_timeout_s = handler.soft_timeout_s
        self.patience_s = self.soft_timeout_s or self.timeout_s
        """The silence after which something is done about it."""
        self.rule = handler.retry
        self.attempts_max: int | None = getattr(handler.retry, "max_attempts", None)

    def within(self, timeout_s: float) -> Bound:
        """Return a copy with another time-out, which its queue or target sets."""
        other = copy(self)
        other.timeout_s = timeout_s
        if self.soft_timeout_s is not None and self.soft_timeout_s >= timeout_s:
            other.soft_timeout_s = None  # it would come after the end
        other.patience_s = other.soft_timeout_s or timeout_s
        return other
