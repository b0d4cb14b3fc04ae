"""Run attempts through the slots and limits of a fleet, event by event. Pure.

Each worker has an even part of the shards, its slots, and the scheduler's own `Limiter` for each
queue with its share of the limit. A queue starts its attempts in the order in which they are due;
queues with waiting attempts take turns. An event is an attempt that is due, one that ends, or the
time at which a token comes back.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from late.control.simulation.attempts import Attempt
from late.model.histogram import bucket
from late.model.queue_settings import QueueSettings
from late.scheduler.limits.limiter import Limiter

FREE = 1 << 30
"""Slots of a worker whose slots are not looked at."""
Reason = str
"""`rate`, `concurrency` or `slots`."""


class Fleet(msgspec.Struct, frozen=True):
    """The workers and knobs that attempts are run with."""

    workers: int
    slots: int
    """The slots of each worker."""
    knobs: Mapping[str, QueueSettings]
    """By queue, those that are set."""
    drag: float = 0.0
    """The part by which a busy fleet is slower than its knobs and run times say: a slot is not
    taken again at the moment at which it is free, nor a token at which it is there."""


class Ran(msgspec.Struct):
    """The course of one queue in a run."""

    waits: Counter[int] = msgspec.field(default_factory=Counter)
    """Attempts by the bucket of their wait, see `late.model.histogram`."""
    backlog_most: int = 0
    drain_us: int = 0
    """From the greatest backlog until nothing waited."""
    slots_busy: float = 0.0
    """Slots that run attempts of any queue, on average over the time of the run."""
    slots_busy_most: int = 0
    limited_us: Counter[Reason] = msgspec.field(default_factory=Counter)
    """The time in which attempts of the queue waited, by what held them back; a worker's time
    counts as its part of the shards."""


class _Worker:
    """The slots, limiters and waiting attempts of one worker."""

    def __init__(self, fleet: Fleet, mine: int, total: int) -> None:
        self.free = fleet.slots
        self.part = mine / total
        self.ready: dict[str, deque[Attempt]] = {}
        self.limiters: dict[str, Limiter] = {}
        for queue, knobs in fleet.knobs.items():
            if knobs.rate is not None:
                knobs = msgspec.structs.replace(
                    knobs, rate=knobs.rate / (1 + fleet.drag), burst=knobs.burst or knobs.rate
                )
            limiter = Limiter(knobs, 0)
            limiter.share(mine, total, 0)
            self.limiters[queue] = limiter
        self.wakes_us: int | None = None
        self.reason: Reason | None = None
        """The cause for which the queue that is looked at waits."""
        self.since_us = 0


class _Run:
    """One run: the clock, the events, and what is noted of one queue."""

    def __init__(self, fleet: Fleet, queue: str, shards: Sequence[int], floor_us: int) -> None:
        count = min(fleet.workers, len(shards))
        places = [place * count // len(shards) for place in range(len(shards))]
        sizes = Counter(places)
        self.workers = [_Worker(fleet, sizes[n], len(shards)) for n in range(count)]
        self.owner = dict(zip(shards, places, strict=True))
        self.queue, self.floor_us, self.slower = queue, floor_us, 1 + fleet.drag
        self.events: list[tuple[int, int, str]] = []
        """(time, worker, queue of the attempt that ends, or nothing for a look)."""
        self.ran = Ran()
        self.backlog = self.running = self.busy_us = 0
        self._most_at_us: int | None = None

    def due(self, each: Attempt) -> None:
        """Let an attempt wait, and start what may start."""
        number = self.owner[each.shard_id]
        self.workers[number].ready.setdefault(each.queue, deque()).append(each)
        if each.queue == self.queue:
            self.backlog += each.number
        self.grant(number, each.due_us)
        # What starts at once was no backlog.
        if each.queue == self.queue and self.backlog > self.ran.backlog_most:
            self.ran.backlog_most, self._most_at_us = self.backlog, each.due_us

    def event(self) -> None:
        """Carry out the next event."""
        now_us, number, queue = heapq.heappop(self.events)
        worker = self.workers[number]
        if queue:
            worker.free += 1
            self.running -= 1
            if (limiter := worker.limiters.get(queue)) is not None:
                limiter.running -= 1
        else:
            worker.wakes_us = None
        self.grant(number, now_us)

    def grant(self, number: int, now_us: int) -> None:
        """Start what may start at one worker, and note what holds the queue back."""
        worker = self.workers[number]
        if worker.reason is not None:
            self.ran.limited_us[worker.reason] += round((now_us - worker.since_us) * worker.part)
        worker.reason, worker.since_us = None, now_us
        opens: list[int] = []
        turns = deque(queue for queue, ready in worker.ready.items() if ready)
        while turns:
            queue = turns.popleft()
            ready, limiter = worker.ready[queue], worker.limiters.get(queue)
            at_us = now_us if limiter is None else limiter.opens_at_us(retry=False, now_us=now_us)
            if at_us == now_us and worker.free:
                self._start(number, ready.popleft(), limiter, now_us)
                if ready:
                    turns.append(queue)
                continue
            if queue == self.queue:
                open_ = at_us == now_us
                worker.reason = "slots" if open_ else "concurrency" if at_us is None else "rate"
            if at_us is not None and at_us > now_us:
                opens.append(at_us)
        # Whose turn it was goes to the end, so that none is always first.
        if len(worker.ready) > 1:
            first = next(iter(worker.ready))
            worker.ready[first] = worker.ready.pop(first)
        if opens and (worker.wakes_us is None or min(opens) < worker.wakes_us):
            worker.wakes_us = min(opens)
            heapq.heappush(self.events, (worker.wakes_us, number, ""))

    def _start(self, number: int, each: Attempt, limiter: Limiter | None, now_us: int) -> None:
        if limiter is not None:
            limiter.start(retry=False, now_us=now_us)
            if limiter.bucket is not None:
                limiter.bucket.earn(1 - each.number)
        self.workers[number].free -= 1
        self.running += 1
        self.busy_us += each.busy_us
        self.ran.slots_busy_most = max(self.ran.slots_busy_most, self.running)
        ends_us = now_us + round(each.busy_us * self.slower)
        heapq.heappush(self.events, (ends_us, number, each.queue))
        if each.queue != self.queue:
            return
        self.backlog -= each.number
        self.ran.waits[bucket(now_us - each.due_us + self.floor_us)] += each.number
        if not self.backlog and self._most_at_us is not None:
            self.ran.drain_us, self._most_at_us = now_us - self._most_at_us, None


def run(
    found: Sequence[Attempt],
    fleet: Fleet,
    queue: str,
    shards: Sequence[int],
    *,
    floor_us: int = 0,
) -> Ran:
    """Run attempts, which are ascending by due time, to the end of the last one.

    Args:
        queue: the one that is looked at.
        shards: all of the group; a worker beyond their number has nothing to do.
        floor_us: the wait of an attempt that nothing holds back.
    """
    if not found:
        return Ran()
    course = _Run(fleet, queue, shards, floor_us)
    events, last_us = course.events, found[0].due_us
    for each in found:
        while events and events[0][0] <= each.due_us:
            course.event()
        course.due(each)
    while events:
        last_us = events[0][0]
        course.event()
    course.ran.slots_busy = course.busy_us / max(1, last_us - found[0].due_us)
    return course.ran
