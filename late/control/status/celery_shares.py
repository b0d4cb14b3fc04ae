"""The state of a move: each task's share, and what the journal has counted on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from late.control.control import Control
from late.control.queue_settings import Settings
from late.model.histogram import bucket, middle
from late.model.task import ENQUEUED, Usage

PREFIX = "celery:"
"""The beginning of the name of a row of settings with the share of a task, and of the name under
which a call is handed to Celery."""
QUEUE = "celery"
"""The queue of the calls that Celery gets. Those that `late` does not support are in
`celery.REASON`, so that the books of `late` count them."""
FAILED = "failed:"
"""The beginning of the name of a row that counts one failed attempt of Celery's workers. It is as
long as `PREFIX`, so that what is left of a name that is too long is the same."""
FAILED_QUEUE = f"{QUEUE}.failed"
STARTED = "starts:"
"""The beginning of the name of a row that tells how late Celery's workers started one call. Its
queue has the lateness, see `started_queue`."""
STARTED_QUEUE = f"{QUEUE}.started"


def is_routed(name: str) -> bool:
    """Tell whether a queue, or a row of settings, is there because a task comes from Celery."""
    return name.startswith(PREFIX) or name.split(".")[0] == QUEUE


def started_queue(late_s: float) -> str:
    """Return the queue of a row with a lateness: that of the next power of two milliseconds. So
    there are some ten of these queues, and the ramp is right within a factor of two."""
    return f"{STARTED_QUEUE}.{max(0, round(late_s * 1000)).bit_length()}"


def _late_us(queue: str) -> int:
    """Return the lateness that a queue of `started_queue` stands for, in microseconds."""
    return 1000 << int(queue.rpartition(".")[2])


class Side(msgspec.Struct):
    """The counts of one side. A message to Celery's broker is done once the broker has it; the
    errors are those of Celery's workers too, and so is the lateness where they tell of it."""

    calls: int = 0
    done: int = 0
    errors: int = 0
    """Attempts that failed."""
    dead: int = 0
    """Calls that became dead letters."""
    late_p50_s: float | None = None
    """Seconds from the due time to the start."""
    late_p99_s: float | None = None


class Ramp(msgspec.Struct):
    """One task."""

    task: str
    share: float
    """The share of calls that `late` takes, 0..1, as it is set."""
    on: bool
    """False: switched off, and every call goes to Celery."""
    late: Side
    celery: Side
    unsupported: dict[str, int]
    """Reason -> calls that went to Celery because `late` does not support them."""


class _Counts:
    """The sums of one side."""

    def __init__(self) -> None:
        self.side = Side()
        self.waits: Counter[int] = Counter()
        self.starts: Counter[int] = Counter()

    def start(self, usage: Usage) -> None:
        """Add the lateness that a worker of Celery tells of."""
        if usage.outcome == ENQUEUED:
            self.starts[bucket(_late_us(usage.queue))] += usage.count

    def add(self, usage: Usage) -> None:
        if usage.outcome == ENQUEUED:
            self.side.calls += usage.count
            return
        for index, count in usage.waiting:
            self.waits[index] += count
        if usage.outcome == "dead":
            self.side.dead += usage.count
            self.side.errors += usage.count
        elif usage.outcome in ("retried", "stalled", "died"):
            self.side.errors += usage.count
        elif usage.outcome in ("done", "settled"):
            self.side.done += usage.count

    def sums(self) -> Side:
        self.side.late_p50_s, self.side.late_p99_s = (self._quantile(q) for q in (0.5, 0.99))
        return self.side

    def _quantile(self, share: float) -> float | None:
        # What waits in Celery's broker is in none of late's own figures.
        waits = self.starts or self.waits
        left = share * waits.total()
        for index in sorted(waits):
            left -= waits[index]
            if left <= 0:
                return middle(index) / 1_000_000
        return None


def ramps(settings: Iterable[Settings], usage: Iterable[Usage]) -> list[Ramp]:
    """Return the tasks that have a share or had calls, ascending by name. Pure."""
    knobs = {s.name.removeprefix(PREFIX): s.knobs for s in settings if s.name.startswith(PREFIX)}
    counted = list(usage)
    routed = {u.name.removeprefix(PREFIX) for u in counted if u.name.startswith(PREFIX)}
    names = sorted(routed | knobs.keys())
    late, celery = ({name: _Counts() for name in names} for _ in range(2))
    refused: Mapping[str, Counter[str]] = {name: Counter() for name in names}
    for each in counted:
        failed, started = each.queue == FAILED_QUEUE, each.queue.startswith(f"{STARTED_QUEUE}.")
        name = each.name.removeprefix(FAILED if failed else STARTED if started else PREFIX)
        if name not in late:
            continue
        if started:
            celery[name].start(each)
            continue
        if failed:
            celery[name].side.errors += each.count if each.outcome == ENQUEUED else 0
            continue
        if name == each.name:
            late[name].add(each)
            continue
        celery[name].add(each)
        if each.queue != QUEUE and each.outcome == ENQUEUED:
            refused[name][each.queue.removeprefix(f"{QUEUE}.")] += each.count
    return [
        Ramp(
            task=name,
            share=0.0 if name not in knobs else knobs[name].late_share or 0.0,
            on=name not in knobs or not knobs[name].closed,
            late=late[name].sums(),
            celery=celery[name].sums(),
            unsupported=dict(refused[name]),
        )
        for name in names
    ]


def read(control: Control, *, since_us: int, group: str) -> list[Ramp]:
    """Read the shares, and the counts of one consumer group since a time.

    Raises:
        LateError: the database cannot be read.
    """
    usage: list[Usage] = []
    reached: Mapping[tuple[str, int], int] = {}
    whole = False
    while not whole:
        found = control.status.usage_since(since_us, reached)
        usage = [] if found.anew else usage
        usage += [each for name, each in found.usage if name == group]
        reached, whole = found.read, found.whole
    return ramps(control.queues.settings("queue"), usage)
