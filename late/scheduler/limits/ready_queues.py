"""Keep the ready tasks of one shard, and choose the next past those that a setting holds back.

Tasks without a limit share one queue by priority, the *main* one. Each flow (`limits.Flow`) has a
queue of its own, so that one which is closed holds nobody up. Turns go round: the main queue, then
one queue of `late` after the other, and within a queue one tenant, and one limit key, after the
other.

An entry in here was `ready` when it came; it leaves by `next`, or by `surplus` into the timer
table. One that was cancelled or put off meanwhile stays until its turn, and is passed over then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence

from late.model.task import PULL_POOL, TRANSACTION_POOL, Reason, TaskId
from late.scheduler.limits.key_limits import KeyLimits, QueueKey
from late.scheduler.limits.limiter import ThrottledQueue
from late.scheduler.limits.limits import LOCAL_POOL, Flow, Limits
from late.scheduler.limits.priority_queue import FOREGROUND_SHARE, ReadyQueue
from late.scheduler.limits.recent_tenants import RecentTenants
from late.scheduler.task_state import Entry

_Queue = tuple[str, str]
NOTHING = -101
"""Below all priorities."""
_OF_THIS_PROCESS = (LOCAL_POOL, TRANSACTION_POOL)
"""Pools whose tasks wait for nothing but a slot here, which is free again within moments."""


class ReadyQueues:
    """The queues of one shard. `len` counts the tasks that nothing but a free slot holds back."""

    def __init__(self, group: str, limits: Limits) -> None:
        self._group = group
        self._limits = limits
        self.keys = KeyLimits()
        """The limits of each limit key of this shard."""
        self.main: ReadyQueue[Entry] = ReadyQueue()
        self._flows: dict[Flow, ReadyQueue[Entry]] = {}
        self._turns: dict[_Queue, deque[Flow]] = {}
        self._order: deque[_Queue] = deque()
        self._mains_turn = True
        self._version = limits.version
        self._rooms: dict[str, int] = {}
        self._background: dict[str, int] = {}
        """The room for background tasks in those pools that keep slots for the foreground."""
        self._background_line = ThrottledQueue()
        self._now_us = 0
        self._closed: set[Flow] = set()
        self._refused: set[Flow] = set()
        """Flows whose last task that wanted to start was not allowed to."""
        self._lines: dict[Flow, ThrottledQueue] = {}
        self._tenants = RecentTenants()
        self.limited = 0
        """Number of entries that have a flow."""
        self._of_pool: Counter[str] = Counter()
        """The same number by pool, whatever the queues of their records are: a task of a pulled
        queue may have been written under another name. Kept, as every grant asks for it."""

    def __len__(self) -> int:
        return len(self.main)

    @property
    def background(self) -> int:
        """Number of background tasks that wait for a slot of this process, limited or not."""
        found = self.main.background
        for flow, queue in self._flows.items():
            if flow.target in _OF_THIS_PROCESS:
                found += queue.background
        return found

    def can_start(self, *, background: bool) -> bool:
        """Return whether a task waits that nothing but a free slot holds back."""
        return self.main.can_pop(background=background)

    def fits(self, room: int, rooms: Mapping[str, int]) -> bool:
        """Return whether a task is here for a pool that has room: the worker's own, or another."""
        if room > 0 and (len(self.main) or self._of_pool[LOCAL_POOL]):
            return True
        return any(free > 0 and self._of_pool[pool] for pool, free in rooms.items())

    def top(self, pools: Collection[str]) -> int:
        """Return the highest priority of the tasks that wait for one of these pools."""
        found = [queue.top for flow, queue in self._flows.items() if flow.target in pools]
        return max([priority for priority in found if priority is not None], default=NOTHING)

    def push(self, entry: Entry) -> None:
        """Add behind its equals."""
        flow = self._limits.flow(self._group, entry)
        queue = self.main if flow is None else self._queue_of(flow)
        queue.push(entry, entry.options.priority)

    def push_due(self, entry: Entry) -> None:
        """Add a task that has waited for its time: it shares the starts with those that wait."""
        flow = self._limits.flow(self._group, entry)
        queue = self.main if flow is None else self._queue_of(flow)
        queue.push_due(entry, entry.options.priority)

    def push_all(self, entries: Sequence[Entry]) -> None:
        """Do as `push` for each."""
        if self._limits.restricts:
            for entry in entries:
                self.push(entry)
            return
        by_priority: dict[int, list[Entry]] = {}
        for entry in entries:
            priority = entry.options.priority
            several = by_priority.get(priority)
            if several is None:
                several = by_priority[priority] = []
            several.append(entry)
        for priority, several in by_priority.items():
            self.main.push_all(several, priority)

    def push_front(self, entry: Entry) -> None:
        """Add before its equals: it had been started already."""
        flow = self._limits.flow(self._group, entry)
        queue = self.main if flow is None else self._queue_of(flow)
        queue.push_front(entry, entry.options.priority)

    def _count(self, flow: Flow, n: int) -> None:
        """Count `n` more entries, or fewer."""
        self.limited += n
        self._limits.wait(flow, n)
        self._of_pool[flow.target] += n

    def _queue_of(self, flow: Flow) -> ReadyQueue[Entry]:
        self._count(flow, 1)
        if flow.tenant:
            self._tenants.came(flow.queue, flow.tenant, self._now_us)
        queue = self._flows.get(flow)
        if queue is None:
            settings = self._limits.settings(flow.queue)
            share = (
                FOREGROUND_SHARE if settings is None else settings.foreground or FOREGROUND_SHARE
            )
            queue = self._flows[flow] = ReadyQueue(share)
            of_queue = (flow.queue, flow.target)
            if of_queue not in self._turns:
                self._turns[of_queue] = deque()
                self._order.append(of_queue)
            self._turns[of_queue].append(flow)
        return queue

    # ------------------------------------------------------------------ starting

    def open(
        self, now_us: int, rooms: Mapping[str, int], background: Mapping[str, int] | None = None
    ) -> None:
        """Begin a round of starts: so many attempts fit into each pool, and so many of the
        background into those that are named."""
        self._now_us = now_us
        self._rooms = dict(rooms)
        self._background = dict(background or {})
        self._closed.clear()
        self.keys.begin(now_us)
        if self._version != self._limits.version:
            self._arrange()

    def _arrange(self) -> None:
        """Put every entry into its flow anew, in the order of the log: settings have changed."""
        self._version = self._limits.version
        entries = list(self.main)
        for queue in self._flows.values():
            entries += queue
        self.abandon()
        self.main = ReadyQueue()
        self._flows, self._turns, self._order, self.limited = {}, {}, deque(), 0
        self._of_pool.clear()
        self._refused.clear()
        for entry in sorted(entries, key=lambda entry: entry.order):
            self.push(entry)

    def abandon(self) -> None:
        """Note that what has a flow waits here no more: it is thrown away, or arranged anew."""
        for flow, queue in self._flows.items():
            self._limits.wait(flow, -len(queue))

    def next(self, put_off: Callable[[Entry], bool] | None = None) -> Entry | None:
        """Take out the next to start, counted as started; None when nothing more may.

        Args:
            put_off: asked before; True: whoever answers so keeps the entry.
        """
        while True:
            entry = self._from_main() if self._mains_turn else self._from_flows()
            if entry is None:
                entry = self._from_flows() if self._mains_turn else self._from_main()
            self._mains_turn = not self._mains_turn
            if entry is None:
                return None
            if put_off is None or not put_off(entry):
                return entry
            self.undo(entry)

    def unlimited(self) -> list[Entry]:
        """Take out what may start at once where nothing is limited, as nearly always."""
        main = self.main
        count = min(len(main), self._rooms.get(LOCAL_POOL, 0))
        if self.limited or count <= 0:
            return []
        if main.has_background:
            return self._unlimited_of_both(count)
        self._rooms[LOCAL_POOL] -= count
        return main.take(count)

    def _unlimited_of_both(self, count: int) -> list[Entry]:
        found = self.main.take(count, self._background.get(LOCAL_POOL))
        for entry in found:
            self._occupy(entry, LOCAL_POOL)
        return found

    def _from_main(self) -> Entry | None:
        background = self._background.get(LOCAL_POOL, 1) > 0
        if self._rooms.get(LOCAL_POOL, 0) <= 0 or not self.main.can_pop(background=background):
            return None
        entry = self.main.pop(background=background)
        self._occupy(entry, LOCAL_POOL)
        return entry

    def _occupy(self, entry: Entry, target: str, count: int = 1) -> None:
        """Take room of a pool; a negative count gives it back."""
        self._rooms[target] = self._rooms.get(target, 0) - count
        if target in self._background:
            # Also by the foreground: the background moves as fast once that is gone.
            self._background_line.starts += count
            if entry.options.priority < 0:
                self._background[target] -= count

    def _from_flows(self) -> Entry | None:
        for _ in range(len(self._order)):
            if not self._order:  # those that were left held nothing that is ready
                break
            of_queue = self._order[0]
            self._order.rotate(-1)
            if self._rooms.get(of_queue[1], 0) <= 0:
                continue
            turns = self._turns[of_queue]
            for _ in range(len(turns)):
                if not turns:
                    break
                flow = turns[0]
                turns.rotate(-1)
                if flow not in self._closed and (entry := self._from_flow(flow)) is not None:
                    return entry
        return None

    def _from_flow(self, flow: Flow) -> Entry | None:
        queue = self._flows[flow]
        if flow.key and not self._key_opens(flow):  # before the search for a task of it
            self._closed.add(flow)
            self._refused.add(flow)
            return None
        found: Entry | None = None
        background = self._background.get(flow.target, 1) > 0
        while found is None and queue.can_pop(background=background):
            entry = queue.pop(newest=self._newest_first(flow, queue), background=background)
            # One that is not ready any more is passed over before it is counted: if it was put
            # off and came back, it stands here twice, and its other place may have started it.
            if entry.state == "ready" and not self._take(entry, flow):
                queue.push_front(entry, entry.options.priority)
                # The share of a tenant opens as soon as the last other one has started.
                if not self._limits.is_full(flow):
                    self._closed.add(flow)
                self._refused.add(flow)
                return None
            self._refused.discard(flow)
            self._count(flow, -1)
            found = entry if entry.state == "ready" else None
        if not queue:
            self._drop(flow)
        return found

    def _newest_first(self, flow: Flow, queue: ReadyQueue[Entry]) -> bool:
        settings = self._limits.settings(flow.queue)
        if settings is None or settings.fresh_first_s is None:
            return False
        waited_us = self._now_us - queue.oldest().due_at_us
        return waited_us > settings.fresh_first_s * 1_000_000

    def _drop(self, flow: Flow) -> None:
        """Remove an empty flow: tenants come and go, and must not be kept for ever."""
        del self._flows[flow]
        self._refused.discard(flow)
        of_queue = (flow.queue, flow.target)
        self._turns[of_queue].remove(flow)
        if not self._turns[of_queue]:
            del self._turns[of_queue]
            self._order.remove(of_queue)

    def admit(self, entry: Entry, *, extra: bool = False) -> bool:
        """Return whether `entry`, which waits elsewhere, may start now; it is counted then.

        Args:
            extra: without a free slot too.
        """
        target = entry.policy.target
        if not extra and self._rooms.get(target, 0) <= 0:
            return False
        flow = self._limits.flow(self._group, entry)
        if flow is not None:
            return self._take(entry, flow)
        self._occupy(entry, target)
        return True

    def _key_opens(self, flow: Flow) -> bool:
        """Return whether the limits per key let one more task of `flow` start now."""
        settings = self._limits.settings(flow.queue)
        if settings is None:
            return True
        name = QueueKey(flow.queue, flow.key)
        opens_us = self.keys.opens_at_us(name, settings, self._now_us)
        return self._limits.notes_opening(opens_us, self._now_us)

    def _take(self, entry: Entry, flow: Flow) -> bool:
        retry = entry.attempts > 0
        if flow.key and not self._key_opens(flow):
            return False
        if not self._limits.admits(flow, retry=retry, now_us=self._now_us):
            return False
        if flow.key:
            self.keys.start(entry.record.task_id, QueueKey(flow.queue, flow.key))
        owner = (self._group, entry.record.task_id)
        self._limits.start(owner, flow, retry=retry, now_us=self._now_us)
        if flow in self._lines:
            self._lines[flow].starts += 1
        self._occupy(entry, flow.target)
        return True

    def undo(self, entry: Entry) -> None:
        """Take back a start: its room is another's."""
        self._occupy(entry, entry.policy.target, -1)
        self._limits.undo((self._group, entry.record.task_id))
        if self.keys.counted:
            self.keys.undo(entry.record.task_id)

    # ------------------------------------------------------------------ asked for

    def asked(self) -> list[str]:
        """Return the pools of pulled queues with waiting consumers whose settings let a task start.

        The settings are those of the pool's queue. A task whose record has another queue obeys the
        settings of that one: where it is paused, a task that was made ready is put off again, as
        `limited`, and so only once.
        """
        return [
            pool
            for pool, room in self._rooms.items()
            if room > 0
            and pool.startswith(PULL_POOL)
            and self._limits.opens(Flow(pool.removeprefix(PULL_POOL), pool), now_us=self._now_us)
        ]

    def ready_for(self, pool: str) -> int:
        """Return how many entries of a pulled queue's pool are here."""
        return self._of_pool[pool]

    def unlimited_for(self, pool: str) -> int:
        """Return how many entries of a pool are here, without those that the timer table has as
        `limited`: what is counted there needs no other count."""
        queues = [queue for flow, queue in self._flows.items() if flow.target == pool]
        return sum(not entry.postponed for queue in queues for entry in queue)

    def waiting_for(self, target: str) -> Counter[str]:
        """Count the entries that wait for a target, by their queue."""
        found: Counter[str] = Counter()
        for flow, queue in self._flows.items():
            if flow.target == target:
                found[flow.queue] += len(queue)
        return found

    def held_by_keys(self, now_us: int) -> dict[QueueKey, int]:
        """Count the entries that the limits per key hold back, by their key."""
        found: Counter[QueueKey] = Counter()
        for flow, queue in self._flows.items():
            settings = self._limits.settings(flow.queue) if flow.key else None
            name = QueueKey(flow.queue, flow.key)
            if settings and self.keys.opens_at_us(name, settings, now_us) != now_us:
                found[name] += len(queue)
        return found

    # ------------------------------------------------------------------ too many

    def surplus(self, keep: int) -> list[tuple[Entry, int, Reason]]:
        """Take out of each flow that is held back what is beyond its first entries, `keep` in all,
        and beyond what it starts until the first of them is back: each with the time at which to
        look at it again, and why it has to go. A flow that waits for nothing but a slot of this
        process stays whole: it moves as everything does."""
        now_us = self._now_us
        lines = self._lines.items()
        self._lines = {f: line for f, line in lines if f in self._flows or not line.over(now_us)}
        found: list[tuple[Entry, int, Reason]] = []
        held_back = [flow for flow in self._flows if self._is_held_back(flow)]
        each = max(1, keep // max(1, len(held_back)))
        for flow in held_back:
            line = self._lines.setdefault(flow, ThrottledQueue())
            if line.measure(now_us) is not None:
                found += self._cut(flow, line, max(each, line.keeps))
        return found

    def tenants_surplus(self, keep: int) -> list[tuple[Entry, int, Reason]]:
        """Take out what a tenant has beyond its first `keep` entries, and beyond what it starts
        until the first of them is back, where another one sends too; as `background_surplus`. It
        waits for nothing but a slot, and no other tenant would be read before it has one."""
        now_us = self._now_us
        found: list[tuple[Entry, int, Reason]] = []
        for flow, queue in list(self._flows.items()):
            fair = bool(flow.tenant) and self._tenants.several(flow.queue, now_us)
            if fair and flow.target in _OF_THIS_PROCESS and len(queue) > keep:
                line = self._lines.setdefault(flow, ThrottledQueue())
                if line.measure(now_us) is not None:
                    found += self._cut(flow, line, max(keep, line.keeps), goes=_fills_the_window)
        return found

    def background_surplus(self, keep: int) -> list[tuple[Entry, int, Reason]]:
        """Take out the background that waits for a slot of this process, but the first `keep` of
        each queue and what starts until the first of them is back; as `surplus`. What has a row in
        the timer table stays: it takes no place of what is to be read."""
        now_us, line = self._now_us, self._background_line
        if line.measure(now_us) is None:
            return []
        keep = max(keep, line.keeps)
        found: dict[TaskId, Entry] = {}
        for flow, queue in self._of_this_process():
            cut = queue.cut_background(keep, _fills_the_window)
            found.update((entry.record.task_id, entry) for entry in cut)
            if flow is not None:
                self._count(flow, -len(cut))
                if not queue:
                    self._drop(flow)
        return [(entry, line.join_us(now_us), "limited") for entry in found.values()]

    def _of_this_process(self) -> list[tuple[Flow | None, ReadyQueue[Entry]]]:
        own = [(flow, q) for flow, q in self._flows.items() if flow.target in _OF_THIS_PROCESS]
        return [(None, self.main), *own]

    def _is_unfetched(self, flow: Flow) -> bool:
        """Return whether consumers are all that it lacks."""
        return flow.target.startswith(PULL_POOL) and flow not in self._refused

    def _is_held_back(self, flow: Flow) -> bool:
        no_room = flow.target not in _OF_THIS_PROCESS and self._rooms.get(flow.target, 0) <= 0
        return no_room or flow in self._refused

    def _cut(
        self, flow: Flow, line: ThrottledQueue, keep: int,
        goes: Callable[[Entry], bool] = lambda entry: True,
    ) -> list[tuple[Entry, int, Reason]]:  # fmt: skip
        now_us, queue = self._now_us, self._flows[flow]
        reason: Reason = "unfetched" if self._is_unfetched(flow) else "limited"
        found: list[tuple[Entry, int, Reason]] = []
        taken: set[TaskId] = set()
        kept: ReadyQueue[Entry] = ReadyQueue(queue.foreground)
        for entry in queue:
            if entry.state != "ready" or entry.record.task_id in taken:
                continue  # cancelled or put off while it was queued, or back since
            if len(kept) < keep or not goes(entry):
                kept.push(entry, entry.options.priority)
                continue
            taken.add(entry.record.task_id)
            again_us = line.join_us(now_us)
            if flow.out is not None:
                again_us = self._limits.outages.sooner_us(flow.out, again_us, now_us)
            # A task that nobody fetched has to be where `unclaimed` looks for it, within the
            # minute, however far ahead a rate puts it: the settings are asked again at its start.
            if reason == "limited":
                ahead = len(kept) + len(taken)
                again_us = max(again_us, self._look_again_us(flow, ahead))
            found.append((entry, again_us, reason))
        self._count(flow, len(kept) - len(queue))
        self._flows[flow] = kept
        if not kept:
            self._drop(flow)
        return found

    def _look_again_us(self, flow: Flow, ahead: int) -> int:
        """Return when a task with `ahead` others of its flow before it may start."""
        now_us, settings = self._now_us, self._limits.settings(flow.queue)
        at_us = self._limits.look_again_us(flow, ahead, now_us)
        if not flow.key or settings is None:
            return at_us
        name = QueueKey(flow.queue, flow.key)
        return max(at_us, self.keys.look_again_us(name, settings, ahead, now_us))


def _fills_the_window(entry: Entry) -> bool:
    """Return whether the entry is ready, and durable in the log alone."""
    return entry.state == "ready" and entry.timer_key is None
