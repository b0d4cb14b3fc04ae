"""Every error that `late` raises, in one tree.

Only `StoreError.transient` decides on a retry. A message names the values that were wrong, so
that it can be acted on without the source. Foreign errors are mapped to these at the seam
(`late/store`), once per driver.
"""

from __future__ import annotations

from collections.abc import Iterator

OVERWRITTEN = (
    "two distributions are installed into the folder of the package `late`, and each has"
    " overwritten files of the other: `late-queue` (the task queue), and one named `late` (another"
    " project, or the task queue before 0.2.0). Run: pip uninstall -y late late-queue;"
    " pip install late-queue"
)
"""`import late` and the command `late` end with this instead of with an error that misleads."""


class LateError(Exception):
    """The root: `except LateError` catches everything this library raises on purpose."""


class ConfigError(LateError):
    """A setting is wrong. Raised at start, never later."""


class Conflict(ConfigError):
    """An operator's command that does not fit what is there now, such as a name that is taken."""


class SecondBlock(ConfigError):
    """A handler has opened a second block of `ctx.once()`. No retry would run it."""


class TaskError(LateError):
    """The task that was asked for cannot be accepted or read."""


class InvalidTask(TaskError, ValueError):
    """Bad input to an enqueue, found before any SQL: the caller's transaction is untouched."""


class InvalidName(InvalidTask):
    """A queue, task, group or key name is outside `[A-Za-z0-9._:-]{1,128}`."""


class InvalidPayload(InvalidTask):
    """Arguments that cannot be encoded, or that do not fit the task's signature."""


class PayloadTooLarge(InvalidTask):
    """The encoded arguments or headers are over the hard limit."""


class InvalidSchedule(InvalidTask):
    """A delay, due time or expiry that cannot be honoured (naive, NaN, too far)."""


class InvalidPolicy(InvalidTask):
    """A retry policy or a priority outside its bounds."""


class InvalidCron(InvalidTask):
    """A cron expression or time zone that does not exist or never fires."""


class BatchTooLarge(InvalidTask):
    """More than 1,000 tasks or 8 MiB of payload in one call."""


class KeyConflict(InvalidTask):
    """The unique key is taken: by a task with another body, or by any where that was asked."""


class QueueFull(TaskError):
    """The queue, or a limit key of it, takes no new tasks; nothing was written.

    Attributes:
        queue: the queue.
        limit_key: the limit key that is full; None if it is the queue.
        held: the number of tasks that it held when they were counted, some seconds ago.
        bound: the most that it may hold; 0 if an operator has closed the queue.
    """

    def __init__(
        self,
        message: str,
        *,
        queue: str = "",
        limit_key: str | None = None,
        held: int = 0,
        bound: int = 0,
    ) -> None:
        super().__init__(message)
        self.queue, self.limit_key, self.held, self.bound = queue, limit_key, held, bound


class SubjectDropped(TaskError):
    """The key of the subject was dropped: there are no new tasks under its name."""


class UnknownTask(TaskError):
    """No handler is registered under this name."""


class DecodeError(TaskError):
    """A stored payload cannot be read: `reason` is the dead letter's reason.

    `elsewhere`: another version of the task may read it, such as one with a parameter more.
    """

    def __init__(
        self, message: str, *, reason: str = "undecodable", elsewhere: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.elsewhere = elsewhere


class TaskEnded(TaskError):
    """A task ended without the result that somebody waits for; `outcome` says how."""

    def __init__(self, message: str, *, outcome: str = "dead") -> None:
        super().__init__(message)
        self.outcome = outcome


class StoreError(LateError):
    """The database refused or could not be reached."""

    transient = False
    """True if the same call may succeed later, unchanged."""
    answered = False
    """True if it is the database's own answer, and not the want of one."""


class StoreUnavailable(StoreError):
    """No connection, or it broke. A write may or may not have happened: ask before repeating."""

    transient = True


class PlaceInDoubt(StoreUnavailable):
    """The database crashed, and what was read last may not have been on disk. What is in memory of
    shards must not be used any more: they begin again from the journal."""


class TransactionAborted(StoreError):
    """The database rolled the transaction back and asks for a repeat (deadlock, 40001, busy)."""

    transient = True


class StoreClosed(StoreError):
    """The store was closed by this process."""


class SchemaMismatch(StoreError):
    """The schema is missing, older or newer than this version of `late`."""


class StoreRefused(StoreError):
    """A guard refused to start: a standby, a restored or cloned copy, an unsafe setting."""


class ServerInRecovery(StoreRefused):
    """The server is a standby. In a fail-over it is promoted soon, so a worker waits for that."""

    transient = True


class DatabaseReplaced(StoreRefused):
    """The file of the database was replaced or moved while this process had it open (SQLite).
    Nothing helps but a start of the process."""


class DispatchError(LateError):
    """A task could not be handed to its target."""


class SoftTimeLimit(DispatchError):
    """A handler's time is nearly over: raised in it at its `soft_timeout_s`, and by `ctx.check()`.

    A handler that lets it out has timed out, and is tried again as after any time-out.
    """

    def __init__(self, message: str = "the time of this attempt is nearly over") -> None:
        super().__init__(message)


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it was raised from, each of them once.

    A chain may be a ring: a client that keeps an error and raises it again, from one that was
    raised from it, makes one. A loop over `__cause__` would then never end.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__  # SQLAlchemy calls it `orig`
