"""The outcomes that a handler may choose besides success and failure, and the retry policy.

The outcomes are exceptions, so that a handler can end with one from any depth. To return one means
the same as to raise it. They are signals and not errors: they are no `LateError`, and the retry
policy does not apply to them. `Retry` is both: as a decorator's argument it is the policy; raised
or returned it asks for one more attempt.

The bounds (`reliability` 3.2) are 1..1,000 attempts, and a first wait above zero and of at most
seven days.
"""

from __future__ import annotations

from typing import Literal

from late.errors import InvalidPolicy, InvalidSchedule
from late.model.task import Policy
from late.model.validation import DAY_S, DELAY_S_MAX, Duration, seconds, shown

Errors = type[BaseException] | tuple[type[BaseException], ...]

BACKOFF_S_MAX = 7 * DAY_S
ATTEMPTS_MAX = 1_000


class Signal(Exception):
    """Base of the outcomes. `except late.handler.outcomes.Signal: raise` passes them on."""

    reason: str | None = None


class Kept(Signal):
    """Success with a result to keep. `@app.task(result_ttl=...)` makes it of a return value."""

    def __init__(self, result: bytes) -> None:
        super().__init__(result)
        self.result = result


class Retry(Signal):
    """The retry policy: the number of attempts of a task and the waits between them.

    Before attempt n + 1 the task waits up to `base * factor ** (n - 1)`, at most `cap`. With full
    jitter it waits a uniform share of that, so that tasks that failed together are not tried again
    together. No retry begins later than `deadline` after the first failed attempt.

    A handler that raises or returns it asks for another attempt: `raise Retry(after_s=30)`, or
    `raise Retry()` for the policy's own wait. The attempt counts like a failed one.

    Args:
        max_attempts: all attempts, with the first one; 1 never repeats.
        base: the first wait, in seconds or as a `timedelta`.
        factor: the growth of the wait from attempt to attempt, 1..100.
        cap: the longest wait; by default 900 seconds, or `base` if that is longer.
        jitter: `"full"` or `"none"`.
        retry_on: types of errors that may be repeated.
        give_up_on: types of errors that may not be repeated; it wins over `retry_on`.
        deadline: the longest time from the first failed attempt to the start of the last one.
        after_s: for the outcome only: the exact wait.
        reason: for the outcome only: a text for the record of the attempt.

    Raises:
        InvalidPolicy: a value is out of bounds.

    Source: full jitter is from Marc Brooker, "Exponential Backoff And Jitter" (AWS, 2015).
    """

    def __init__(
        self,
        max_attempts: int = 12,
        base: Duration = 1.0,
        factor: float = 2.0,
        cap: Duration | None = None,
        jitter: Literal["full", "none"] = "full",
        *,
        retry_on: Errors = Exception,
        give_up_on: Errors = (),
        deadline: Duration = DAY_S,
        after_s: Duration | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__()
        # `args` stays empty and every parameter has a default, so that the instance crosses a
        # process boundary: pickle calls `Retry()` and then restores the attributes.
        self.args = ()
        whole = isinstance(max_attempts, int) and not isinstance(max_attempts, bool)
        if not whole or not 1 <= max_attempts <= ATTEMPTS_MAX:
            raise InvalidPolicy(
                f"max_attempts must be 1..{ATTEMPTS_MAX}, got {shown(max_attempts)}"
            )
        if not isinstance(factor, int | float) or not 1 <= factor <= 100:
            raise InvalidPolicy(f"factor must be 1..100, got {shown(factor)}")
        if jitter not in ("full", "none"):
            raise InvalidPolicy(f"jitter must be 'full' or 'none', got {shown(jitter)}")
        self.max_attempts = max_attempts
        self.base_s = seconds(base, "base", least=0.001, most=BACKOFF_S_MAX)
        self.factor = float(factor)
        cap = max(900.0, self.base_s) if cap is None else cap
        self.cap_s = seconds(cap, "cap", least=self.base_s, most=BACKOFF_S_MAX)
        self.jitter = jitter
        self.retry_on = _errors(retry_on, "retry_on")
        self.give_up_on = _errors(give_up_on, "give_up_on")
        self.deadline_s = seconds(deadline, "deadline", least=0.001, most=DELAY_S_MAX)
        self.after_s = None if after_s is None else _wait_s(after_s, "after_s")
        self.reason = reason

    def allows(self, error: BaseException) -> bool:
        """Tell whether the policy repeats `error`, if there are attempts left."""
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)

    def policy(self, queue: str) -> Policy:
        """Return the policy as the plain values that the scheduler uses."""
        return Policy(
            queue=queue,
            max_attempts=self.max_attempts,
            base_us=round(self.base_s * 1e6),
            factor=self.factor,
            cap_us=round(self.cap_s * 1e6),
            full_jitter=self.jitter == "full",
            deadline_us=round(self.deadline_s * 1e6),
        )

    def __str__(self) -> str:
        if self.after_s is not None:
            return f"retry after {self.after_s:g} s"
        return self.reason or f"retry, at most {self.max_attempts} attempts"


class Snooze(Signal):
    """Run the task again after `for_s`. This uses no attempt.

    Raises:
        InvalidSchedule: `for_s` is not 0..366 days.
    """

    def __init__(self, for_s: Duration, reason: str | None = None) -> None:
        super().__init__()
        self.for_s = _wait_s(for_s, "for_s")
        self.reason = reason
        self.args = (self.for_s, reason)

    def __str__(self) -> str:
        return f"snooze for {self.for_s:g} s" + (f": {self.reason}" if self.reason else "")


class Discard(Signal):
    """End the task as `discarded`, because it has no use any more.

    It is neither repeated nor a dead letter.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__()
        self.reason = reason
        self.args = (reason,)

    def __str__(self) -> str:
        return f"discard: {self.reason}" if self.reason else "discard"


class AlreadyDone(Signal):
    """End the task as done, because an earlier run has committed its effects.

    `ctx.once()` raises it. A handler that notices it by itself may raise or return it too.
    """


class Exhausted(Signal):
    """End the task as a dead letter: the code that repeats it has used up its attempts.

    Raised from the last error, whose text the dead letter has.
    """


class Nack(Signal):
    """Refuse the task on this worker.

    Args:
        reason: text for the record of the attempt.
        not_capable: True if this worker lacks something that another may have (a device, a file):
            the task waits for another worker, and no attempt is used. False refuses the task
            itself: the attempt has failed, as with an exception.
    """

    def __init__(self, reason: str | None = None, *, not_capable: bool = True) -> None:
        super().__init__()
        self.args = ()
        self.not_capable = not_capable
        self.reason = reason

    def __str__(self) -> str:
        return f"nack: {self.reason}" if self.reason else "nack"


def _wait_s(value: Duration, what: str) -> float:
    return seconds(value, what, least=0.0, most=DELAY_S_MAX, error=InvalidSchedule)


def _errors(types: Errors, what: str) -> tuple[type[BaseException], ...]:
    listed = types if isinstance(types, tuple) else (types,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in listed):
        raise InvalidPolicy(f"{what} takes exception types, got {shown(types)}")
    return listed


__all__ = ["AlreadyDone", "Discard", "Duration", "Nack", "Retry", "Signal", "Snooze"]
