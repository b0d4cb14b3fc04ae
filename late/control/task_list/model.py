"""Tasks in a list: the states, the filter, one page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from late.errors import ConfigError
from late.model.ids import shard_of
from late.model.task import DEFAULT_GROUP, Reads, Reason
from late.model.validation import RESERVED

State = Literal["logged", "open", "running", "parked", "dead", "done"]
STATES: tuple[State, ...] = get_args(State)
SAYS: Mapping[State, str] = {
    "logged": "no worker has read it, or none has recorded anything in its shard since",
    "open": "read by a worker: ready, held back by a limit, or running",
    "running": "runs for over two seconds, as its worker told within the last 15 s",
    "parked": "waits for its time, for a retry, behind its ordering key, or for a limit",
    "dead": "will not run again by itself",
    "done": "has ended, and its history is kept",
}
Commanded = Literal["logged", "open", "running", "parked", "dead", "done", "unfinished"]
"""A command names a state or `unfinished`. Some are refused: see `COMMANDED`."""
COMMANDED: Mapping[str, tuple[State, ...]] = {
    "logged": ("logged",),
    "open": ("open",),
    "parked": ("parked",),
    "unfinished": ("logged", "open", "parked"),
}
"""The tasks that can be cancelled and rescheduled: their states, in the order in which a task goes
through them. So one that moves on during a look at all of them is found in the next one."""
Key = tuple[int, str]
"""The order of a state: a position in the log or a time, then the id."""


class Enqueued(msgspec.Struct, frozen=True):
    """A view with `enqueued_at_us`: it has the value of `created_at_us`, the deprecated name."""

    def __post_init__(self) -> None:
        view: Any = self
        if view.enqueued_at_us is None:
            msgspec.structs.force_setattr(self, "enqueued_at_us", view.created_at_us)


class ListedTask(Enqueued, frozen=True, kw_only=True):
    """One task in one consumer group. Times are the database's, in microseconds."""

    at: int
    """Its place in the order of its state: a position in the log, or a time."""
    task_id: str
    group: str
    shard_id: int
    queue: str | None = None
    """The queue; None of one that ended under a version that left it out of the history."""
    name: str | None = None
    created_at_us: int | None = None
    """Deprecated, as `enqueued_at_us`."""
    attempts: int = 0
    """Attempts that have begun; of one that runs its number."""
    due_at_us: int | None = None
    """The due time of a parked task; `late.model.task.HELD_US` if it waits for its ordering key."""
    reason: str | None = None
    """Why it is parked or dead, or how it ended; of one that has not begun `queue paused` or
    `group paused`."""
    ordering_key: str | None = None
    """Its key, if it is parked behind it or if the filter asks for a key."""
    started: bool = False
    """An attempt was under way when its shard's owner last recorded its state."""
    worker: str | None = None
    """The address of the worker that runs it."""
    began_at_us: int | None = None
    ended_at_us: int | None = None
    trace: str | None = None
    """The id of its trace, if it has one."""
    error: str | None = None
    """The last error of a dead one, its last line."""
    headers: dict[str, str] | None = None
    """Its headers, if the filter asks for one or for a tenant."""
    enqueued_at_us: int | None = None
    """The time of its enqueue: on Spanner the commit's, elsewhere the insert's."""

    @property
    def key(self) -> Key:
        """Its place, and what tells it from others there."""
        return self.at, self.task_id


class TaskPage(msgspec.Struct, frozen=True):
    """One page."""

    state: State
    tasks: tuple[ListedTask, ...]
    after: Key | None
    """The key after which the next page begins; None if this is the last one."""
    now_us: int
    """The database's clock."""
    looked: int
    """The rows that were looked at."""
    stopped: bool
    """True if the look ended at its bound: there may be more that match on further pages."""


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that are asked for: all of the given fields match."""

    group: str = DEFAULT_GROUP
    queue: str | None = None
    name: str | None = None
    reason: str | None = None
    """Why it is parked (a `late.model.task.Reason`) or dead, or how it ended."""
    key: str | None = None
    """The ordering key."""
    tenant: str | None = None
    """The value of the header that `fair_key` of its queue names."""
    header: tuple[str, str] | None = None
    older_us: int = 0
    """Enqueued at least so long ago."""
    since_us: int | None = None
    """At or after this time: due, if parked; died, if dead; began, if running; made, if done;
    enqueued otherwise."""
    until_us: int | None = None
    """Before this time."""

    @property
    def asks_headers(self) -> bool:
        """True if the headers decide."""
        return self.tenant is not None or self.header is not None

    @property
    def plain(self) -> bool:
        """True if it leaves out nothing of its group, but by what an index knows."""
        bare = TaskFilter(group=self.group, since_us=self.since_us, until_us=self.until_us)
        return self == bare

    def check(self, state: State) -> None:
        """Refuse what can match nothing.

        Raises:
            ConfigError: an empty range of time, a question that this state cannot answer, or a
                reason for which nothing is parked.
        """
        since, until = self.since_us, self.until_us
        if since is not None and until is not None and since >= until:
            raise ConfigError("since must be before until")
        asked = [name for name in _LEFT_OUT[state] if getattr(self, name)]
        if asked:
            raise ConfigError(f"tasks in state {state!r} are not known by their {asked[0]}")
        reasons = get_args(Reason)
        if state == "parked" and self.reason is not None and self.reason not in reasons:
            raise ConfigError(f"reason {self.reason[:64]!r}: one of {', '.join(reasons)}")

    def takes(self, task: ListedTask, reads: Reads, fair_keys: Mapping[str, str]) -> bool:
        """Tell whether the filter takes a task of the log or the timers, and the group does.

        Commands are no tasks. The age and the times are for the caller, who knows the clock.

        Args:
            fair_keys: the header that names the tenant, by queue.
        """
        queue, created_us = task.queue or "", task.created_at_us or 0
        return (
            not queue.startswith(RESERVED)
            and created_us >= reads.from_us
            and (reads.queues is None or queue in reads.queues)
            and self.matches(task, fair_keys)
        )

    def matches(self, task: ListedTask, fair_keys: Mapping[str, str]) -> bool:
        """Tell whether a task has the values that are asked for."""
        headers = task.headers or {}
        tenant = headers.get(fair_keys.get(task.queue or "", ""))
        return (
            self.queue in (None, task.queue)
            and self.name in (None, task.name)
            and self.reason in (None, task.reason)
            and self.key in (None, task.ordering_key)
            and (self.tenant is None or self.tenant == tenant)
            and (self.header is None or headers.get(self.header[0]) == self.header[1])
        )


_LEFT_OUT: Mapping[State, tuple[str, ...]] = {
    "logged": ("reason",),
    "open": ("reason",),
    "running": ("reason", "key", "tenant", "header", "older_us"),
    "parked": (),
    "dead": (),
    "done": ("key", "tenant", "header", "older_us"),
}
"""The fields that a state keeps nothing of."""


def cursor_of(key: Key | None) -> str | None:
    """Return the text of a page's end, for links and for programs."""
    return None if key is None else f"{key[0]}.{key[1]}"


def key_of(text: str | None) -> Key | None:
    """Read the text of a page's end; None or an empty one is the beginning.

    Raises:
        ConfigError: it is none.
    """
    if not text:
        return None
    number, dot, task_id = text.partition(".")
    try:
        if task_id:
            shard_of(task_id)  # Raises InvalidName, which is a ValueError, for what is no id.
        if dot and number.isascii() and number.isdigit() and int(number) < 2**63:
            return int(number), task_id
    except ValueError:
        pass
    raise ConfigError(f"after {text[:64]!r}: it is no end of a page")
