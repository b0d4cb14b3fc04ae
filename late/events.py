"""The telemetry contract: each event, its numbers and its labels.

`EVENTS` is the contract as data. A new name for an event or for one of its values breaks someone's
dashboard, so it is a breaking change; a new event is not. Components call `emit`; logs, metrics
and tests subscribe. Without a subscriber a call costs one look-up. On the common path nothing is
emitted once per task: counts are added up per page, batch or settlement. The exception is for
whoever wants a line for each attempt, `ATTEMPT_ENDED`.

Values never hold a payload, headers or arguments of a task.

Source: the structure (events with measures and tags, listed in one place) is that of Erlang's
`telemetry` as Oban uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

Level = Literal["debug", "info", "warning", "error"]


class Event(msgspec.Struct, frozen=True):
    """One kind of event. `emit` needs all of its measures, tags, series and details."""

    name: str
    level: Level
    """The level of its line in the log."""
    text: str
    """A description for people."""
    measures: tuple[str, ...] = ()
    """Numbers that can be added up or put into a histogram; names of seconds end in `_s`."""
    tags: tuple[str, ...] = ()
    """Labels with few values, safe for a metrics system."""
    series: tuple[str, ...] = ()
    """Histograms (`late/model/histogram.py`) of microseconds. They are for metrics only: no line of
    the log shows them."""
    details: tuple[str, ...] = ()
    """Values for a log line only, such as ids and error texts."""


EVENTS: dict[str, Event] = {}
"""Every event, by name."""


def _event(
    name: str,
    level: Level,
    text: str,
    *,
    measures: str = "",
    tags: str = "",
    series: str = "",
    details: str = "",
) -> Event:
    parts = (tuple(words.split()) for words in (measures, tags, series, details))
    EVENTS[name] = event = Event(name, level, text, *parts)
    return event


WORKER_STARTED = _event(
    "worker_started", "info", "worker started", details="worker version database"
)
STORE_EXPERIMENTAL = _event(
    "store_experimental",
    "warning",
    "this store is experimental: it has never been run on a real node of its database",
    details="store",
)
DATABASE_AWAITED = _event(
    "database_awaited",
    "warning",
    "the database cannot be opened: the process tries again for a time, see error",
    details="for_s error",
)
WORKER_STOPPED = _event("worker_stopped", "info", "worker stopped", details="worker")

PAGE_READ = _event(
    "page_read", "debug", "log read", measures="pages records bytes duration_s", tags="group"
)
STORE_ERROR = _event(
    "store_error",
    "warning",
    "database error, will try again",
    measures="retry_in_s",
    tags="component transient",
    details="error",
)
PRUNED = _event(
    "pruned",
    "debug",
    "maintenance done",
    measures="tasks partitions settlements workers compacted duration_s",
)

RPC = _event(
    "rpc",
    "debug",
    "call to the database's API ended",
    measures="duration_s sent_bytes received_bytes retries",
    tags="method code role",
)

CONFLICT = _event(
    "conflict",
    "info",
    "a transaction was ended or held up by another one",
    measures="count lost_s",
    tags="kind tag other",
    details="attempt tables key process statement other_statement other_idle error",
)

HEARTBEAT = _event("heartbeat", "debug", "heartbeat sent", measures="workers duration_s")
MEMBERS_UNKNOWN = _event(
    "members_unknown",
    "warning",
    "the list of members could not be looked up: the last one counts",
    measures="members",
    details="name error",
)
NOT_A_MEMBER = _event(
    "not_a_member",
    "warning",
    "this worker is not on the list of members: it owns nothing",
    details="member members",
)
TRUST_LOST = _event(
    "trust_lost", "warning", "heartbeat overdue: no task is started", measures="shards"
)
TRUST_REGAINED = _event("trust_regained", "info", "heartbeat is back", measures="shards")
STALLED = _event(
    "stalled",
    "error",
    "the worker does not get on with what it owes: it gives its shards up",
    details="duties",
)
EVENT_LOOP_BLOCKED = _event(
    "event_loop_blocked",
    "warning",
    "the event loop does not turn, so no other task of this worker gets on: make the handler a"
    " `def`, or await what waits at this place (asyncio.to_thread)",
    measures="blocked_s",
    details="place name task",
)
EVENT_LOOP_FREE = _event(
    "event_loop_free", "info", "the event loop turns again", measures="blocked_s", details="place"
)
STALL_OVER = _event("stall_over", "info", "the worker gets on again: it may own shards")
HEALTH_SERVED = _event("health_served", "info", "health check listens", details="host port")
HINTS_HEARD = _event("hints_heard", "info", "hints of commits are heard", details="host port")
API_SERVED = _event("api_served", "info", "interface listens", details="protocol host port")
PAGE_SERVED = _event("page_served", "info", "the page for operators is here", details="url")
SIGN_IN_FAILED = _event(
    "sign_in_failed",
    "warning",
    "a caller has shown no valid token",
    tags="interface",
    details="address token_name",
)
SIGN_IN_SLOWED = _event(
    "sign_in_slowed",
    "debug",
    "a caller has shown no valid token, and others came from its address before",
    tags="interface",
)
CONNECTION_REFUSED = _event(
    "connection_refused",
    "debug",
    "a port refused or ended connections for its bounds",
    measures="count",
    tags="port reason",
)
REFUSALS = _event(
    "refusals",
    "warning",
    "a port refuses or ends connections for its bounds: this line comes once a minute at most",
    tags="port reason",
    details="count",
)
ISSUER_AWAY = _event(
    "issuer_away",
    "warning",
    "the identity provider's keys could not be read: those that were read last still count",
    details="issuer error",
)
HEADER_IGNORED = _event(
    "header_ignored",
    "warning",
    "a header that names a user came from an address that is no --trusted-proxy; it is told once",
    details="address",
)
SIGNED_IN = _event(
    "signed_in", "info", "a person has signed in to the page", details="person address"
)
LEASE_ACQUIRED = _event(
    "lease_acquired", "debug", "shard acquired", tags="group shard", details="epoch"
)
SUSPECTS_FOUND = _event(
    "suspects_found",
    "warning",
    "a worker died while these tasks ran: each runs on trial",
    measures="suspects",
    tags="group shard",
    details="tasks",
)
LEASE_RELEASED = _event(
    "lease_released", "debug", "shard released", tags="group shard", details="epoch"
)
LEASE_LOST = _event(
    "lease_lost", "warning", "shard taken over by a peer", tags="group shard", details="epoch"
)
SILENT_WORKER = _event(
    "silent_worker",
    "warning",
    "a worker sends nothing, and its lease goes on by the database's clock: its shards are free",
    details="worker address",
)
SETTLEMENT_REFUSED = _event(
    "settlement_refused",
    "error",
    "the database refuses this settlement, not for a moment: it is kept and sent again; one that is"
    " not kept any more leaves its shard alone, and what that had open runs again then",
    measures="retry_in_s",
    tags="group shard",
    details="epoch kept error",
)
FENCED = _event(
    "fenced",
    "warning",
    "settlement refused: the shard has another owner",
    tags="group shard",
    details="epoch",
)

DISPATCHED = _event("dispatched", "debug", "attempts started", measures="count", tags="group")
SETTLED = _event(
    "settled",
    "debug",
    "outcomes settled",
    measures="settlements outcomes duration_s",
)
ENDED = _event(
    "ended",
    "debug",
    "attempts ended",
    measures="count attempts retries bytes busy_s waiting_s",
    tags="group queue name target outcome",
    series="waiting busy",
)
ATTEMPT_FAILED = _event(
    "attempt_failed",
    "warning",
    "attempt failed",
    measures="attempt",
    tags="group queue name",
    details="task error",
)
ATTEMPT_ENDED = _event(
    "attempt_ended",
    "debug",
    "attempt ended",
    measures="attempt took_s",
    tags="group queue name outcome",
    details="task",
)
OUTAGE_BEGAN = _event(
    "outage_began",
    "warning",
    "most tasks of this name fail, as if what they need is away: they keep their attempts",
    tags="group queue name",
)
OUTAGE_ENDED = _event(
    "outage_ended",
    "info",
    "tasks of this name work again",
    tags="group queue name",
)
DEAD_LETTER = _event(
    "dead_letter",
    "error",
    "task will not run again",
    measures="attempts",
    tags="group queue name reason",
    details="task error",
)
UNKNOWN_TASK = _event(
    "unknown_task",
    "warning",
    "no handler here can run the task: parked",
    measures="count",
    tags="group queue name",
    details="task error",
)
LATE_RESULT = _event(
    "late_result",
    "warning",
    "result of an attempt whose shard has gone to another owner: dropped",
    measures="count",
    tags="group shard",
)
REPLAYED = _event(
    "replayed",
    "warning",
    "a second row of a task was refused: somebody has copied a row of the log",
    measures="count",
    tags="group shard",
    details="task",
)
ALREADY_DONE = _event(
    "already_done",
    "info",
    "the task's effects were there already: it had run before",
    tags="group queue name",
    details="task attempt",
)
STUCK_HANDLER = _event(
    "stuck_handler",
    "warning",
    "handler runs on after its time-out and holds a slot",
    measures="running_s",
    tags="queue name",
    details="task",
)
HANDLER_LEFT = _event(
    "handler_left",
    "warning",
    "the worker ends before this handler: its task is started again",
    measures="running_s",
    tags="queue name",
    details="task",
)
CHILD_DIED = _event(
    "child_died",
    "warning",
    "a child process died",
    tags="name",
    details="task exit_code",
)
TARGET_UP = _event(
    "target_up", "info", "endpoint of a target is up", tags="target", details="endpoint"
)
TARGET_DOWN = _event(
    "target_down",
    "warning",
    "endpoint of a target is down: it gets no tasks",
    tags="target",
    details="endpoint error",
)
TICK = _event(
    "tick",
    "debug",
    "schedule fired",
    measures="tasks lateness_s skipped overlaps late",
    tags="schedule",
)
AUTOSCALER_LOOKED = _event(
    "autoscaler_looked",
    "debug",
    "the autoscaler has looked",
    measures="size wanted",
    tags="controller rule",
)
AUTOSCALED = _event(
    "autoscaled",
    "info",
    "the autoscaler has decided",
    measures="from_size to_size wanted",
    tags="controller rule result",
    details="why",
)
AUTOSCALER_BLIND = _event(
    "autoscaler_blind",
    "warning",
    "the autoscaler cannot look or act, will try again",
    measures="retry_in_s",
    tags="controller",
    details="error",
)
CONTROLLER = _event(
    "controller",
    "info",
    "who controls this size, as far as this process knows",
    tags="controller",
    details="epoch acts",
)
GROUP_LAGGING = _event(
    "group_lagging",
    "warning",
    "consumer group is behind: the log keeps what it has not read",
    measures="lag_s unread",
    tags="group",
    details="state",
)
GROUP_CAUGHT_UP = _event(
    "group_caught_up", "info", "consumer group is no longer behind", tags="group"
)
SCHEDULE_DISABLED = _event(
    "schedule_disabled", "error", "schedule cannot be read", tags="schedule", details="error"
)

Subscriber = Callable[[Event, Mapping[str, Any]], None]


class Emitter:
    """Calls the subscribers of an event, in the caller's thread and in order of subscription.

    Subscribing is rare and emitting is not. So `subscribe` builds a new table of subscribers per
    event, and `emit` needs one look-up in it and is safe from any thread.
    """

    def __init__(self) -> None:
        self._subscribers: dict[int, tuple[Subscriber, frozenset[str]]] = {}
        self._by_name: dict[str, tuple[Subscriber, ...]] = {}
        self._next = 0

    def subscribe(
        self, subscriber: Subscriber, events: Iterable[Event] | None = None
    ) -> Callable[[], None]:
        """Call `subscriber(event, values)` for each of `events`; None stands for all events.

        It runs inside the emitter's caller, so it must be quick and must not wait. An exception
        that it raises is logged and does not reach that caller.

        Returns:
            A function that ends the subscription; calling it twice is fine.
        """
        chosen = EVENTS.values() if events is None else events
        key, self._next = self._next, self._next + 1
        self._subscribers[key] = (subscriber, frozenset(event.name for event in chosen))
        self._rebuild()

        def unsubscribe() -> None:
            if self._subscribers.pop(key, None) is not None:
                self._rebuild()

        return unsubscribe

    def wants(self, event: Event) -> bool:
        """Tell whether `event` has a subscriber. Ask before computing values that are costly."""
        return event.name in self._by_name

    def emit(self, event: Event, **values: Any) -> None:
        """Call the subscribers of `event`. `values` holds all values that the event names."""
        subscribers = self._by_name.get(event.name)
        if subscribers is None:
            return
        declared = (*event.measures, *event.tags, *event.series, *event.details)
        assert values.keys() == set(declared), f"{event.name} takes {declared}, got {[*values]}"
        for subscriber in subscribers:
            try:
                subscriber(event, values)
            except Exception:
                # A failure of telemetry must not make the work fail.
                _log.exception("a subscriber of %s failed", event.name)

    def _rebuild(self) -> None:
        table: dict[str, list[Subscriber]] = {}
        for subscriber, names in self._subscribers.values():
            for name in names:
                table.setdefault(name, []).append(subscriber)
        self._by_name = {name: tuple(found) for name, found in table.items()}


_log = logging.getLogger("late.events")

default = Emitter()
"""The emitter of this process. Components use it unless they are given another one."""
