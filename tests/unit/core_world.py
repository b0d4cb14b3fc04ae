"""A small world for `ShardCore`: a log, a timer table and a journal in memory, judged throughout.

The world is deliberately naive: lists and dicts, no bound, no cleverness. It delays and repeats
what a real store may delay and repeat, kills the owner at any point, and checks after every
settlement that the log is exactly settled + open + parked + not yet covered.
"""

from __future__ import annotations

import random

import msgspec

from late.model.lanes import Gate
from late.model.queue_settings import QueueSettings
from late.model.task import (
    ENQUEUED,
    HELD_US,
    Attempt,
    Cursor,
    DeadLetter,
    Epoch,
    Options,
    Outcome,
    Parked,
    Policy,
    Reads,
    Record,
    ShardId,
    TaskId,
)
from late.payload.command import PREFIX, QUEUE, Kind, decode
from late.scheduler.core.shard_core import ShardCore
from late.scheduler.events_effects import (
    Dispatch,
    Effect,
    Event,
    Fetch,
    Finished,
    Grant,
    Load,
    LoadFailed,
    OpenFetched,
    PageRead,
    ParkedLoaded,
    Read,
    Settled,
    Stop,
)
from late.scheduler.limits.limits import Limits
from late.scheduler.settings import CoreSettings
from late.scheduler.usage import LOST
from late.store.base import HeldKey, Lease, Page, Settlement
from late.store.common.suspects import inherited

SECOND = 1_000_000
POLICIES = {
    "job": Policy(max_attempts=4, base_us=SECOND, cap_us=8 * SECOND),
    "kept": Policy(history=True),
    "letter": Policy(max_attempts=4, base_us=30 * SECOND, cap_us=30 * SECOND, target="pull:mail"),
    "parcel": Policy(target="pull:post"),
}
SETTINGS = CoreSettings(
    window=24, page_size=8, timers_max=16, horizon_us=2 * SECOND, settle_bytes=10
)


def position_of(cursor: str) -> int:
    """How many records a cursor of this world covers."""
    return int(cursor.split("@")[1].split(",")[0]) if "@" in cursor else int(cursor or 0)


class World:
    """One shard, one group, one owner at a time. `now_us` moves only when the test says so."""

    reads = Reads()

    def __init__(self, seed: int = 0, settings: CoreSettings = SETTINGS, shard_id: int = 0) -> None:
        self.shard_id = ShardId(shard_id)
        self.gate = Gate()
        self.results: dict[str, bytes] = {}
        self.queue_settings: dict[str, QueueSettings] = {}
        self.pools: tuple[str, ...] = ()
        """Pulled queues' pools of this worker, from the next take-over on."""
        self.asked: dict[str, int] = {}
        """What consumers wait for now, by pool."""
        self.limits = Limits()
        self.rng = random.Random(seed)
        self.settings = settings
        self.now_us = 1_000 * SECOND
        self.log: list[Record] = []
        self.timers: dict[tuple[int, str], Parked] = {}
        self.final: dict[str, str] = {}  # task id -> how it ended
        self.dead: list[str] = []
        self.letters: dict[str, DeadLetter] = {}
        self.revived: set[str] = set()
        self.steps: list[tuple[str, str]] = []
        """(task, event) of the histories, as they came into the journal."""
        self.rescheduled: set[str] = set()
        """Somebody has asked for another due time, perhaps an earlier one."""
        self.not_before_us: dict[str, int] = {}
        """By the only reschedule of a task, once that is settled."""
        self.starts: list[Attempt] = []
        self.ends: list[str] = []  # task ids in the order of their final outcome
        self.deaths = 0  # of the owner
        self.rerun_allowed: dict[str, int] = {}
        self.taken_at_us: int | None = None
        self.tainted: set[str] = set()
        """May have run when its owner died, and was not started since."""
        self.unrecorded: set[str] = set()
        """Started by this owner, and no end or parking of it is in the journal."""
        self.suspected: set[str] = set()
        """Died under its mark, and no attempt of it has ended since."""
        self.running: list[Attempt] = []
        self.answers: list[tuple[Event, int]] = []  # (event, epoch) on their way to the core
        self.arrived = 0  # as the journal has counted
        self.last = Settlement("", "g", ShardId(0), 0, Epoch(0), "", Cursor(""), ())
        self.out: Settlement | None = None
        self.applied_out = False
        self.want: Read | None = None
        self.epoch = 0
        self.core: ShardCore
        self.take_over()

    # -- producers

    def enqueue(
        self, name: str = "job", payload: bytes = b"{}", queue: str = "q", **options: object
    ) -> TaskId:
        """Commit one task; `headers` are a text among the options."""
        headers = options.pop("headers", None)
        number = len(self.log) + 1
        task_id = TaskId(f"a{number:05d}")
        text = msgspec.json.encode(Options(**options)).decode() if options else None  # type: ignore[arg-type]
        row = (self.shard_id, number, task_id, queue, name, payload, headers, text)
        self.log.append(Record(*row, self.now_us, number))
        return task_id

    def turn(self, **queues: QueueSettings) -> None:
        """The knobs of the queues from now on."""
        self.queue_settings = queues
        self.limits.set(queues, {}, self.now_us)

    def command(self, kind: Kind, task_id: str, **body: object) -> TaskId:
        """Commit one command."""
        number = len(self.log) + 1
        command_id = TaskId(f"a{number:05d}")
        payload = msgspec.json.encode({"task_id": task_id, **body})
        name = f"{PREFIX}{kind}"
        if kind in ("reschedule", "redrive"):
            self.not_before_us.pop(task_id, None)
            self.rescheduled.add(task_id)
        self.log.append(
            Record(0, number, command_id, QUEUE, name, payload, None, None, self.now_us, number)
        )
        return command_id

    def record(self, task_id: str) -> Record:
        return self.log[int(task_id[1:]) - 1]

    # -- the owner's life

    def take_over(self, *, died: bool = True) -> None:
        """A new owner: nothing survives but the journal, the log and the timer table.

        The old one has `died`, or has given the shard back.
        """
        died = died and self.epoch > 0
        self.deaths += died
        # After a hand-over what a dead owner had started is as suspicious as before.
        self.taken_at_us = self.now_us if died else self.taken_at_us
        self.tainted |= self.unrecorded if died else set()
        self.unrecorded = set()
        self.suspected = {s.task_id for s in inherited(self.last.suspects, died=died) if s.deaths}
        for attempt in self.running:
            self.rerun_allowed[attempt.record.task_id] = (
                self.rerun_allowed.get(attempt.record.task_id, 0) + 1
            )
        # What ended but was not settled is run again as well.
        for task_id in {a.record.task_id for a in self.starts} - self.final.keys():
            self.rerun_allowed[task_id] = self.rerun_allowed.get(task_id, 0) + 1
        self.running, self.answers, self.out, self.want = [], [], None, None
        self.epoch += 1
        held: dict[str, HeldKey] = {}
        for (due_at_us, _), row in self.timers.items():
            if row.held_key is not None:
                old = held.get(row.held_key, HeldKey(0, False))
                held[row.held_key] = HeldKey(
                    old.waiting + (due_at_us == HELD_US), old.head_parked or due_at_us < HELD_US
                )
        self.last = msgspec.structs.replace(
            self.last,
            seq=self.last.seq + 1,
            epoch=Epoch(self.epoch),
            suspects=inherited(self.last.suspects, died=died),
        )
        lease = Lease(
            "g",
            self.shard_id,
            f"w{self.epoch}",
            Epoch(self.epoch),
            self.last.seq,
            self.last.cursor,
            self.last.open,
            held,
            taken_at_us=self.taken_at_us,
            suspects=self.last.suspects,
            reads=self.reads,
        )
        self.limits = Limits(self.pools)
        self.limits.set(self.queue_settings, {}, self.now_us)
        self.core = ShardCore(lease, POLICIES, self.settings, self.limits, self.gate)
        self.step(Grant(self.now_us, 0))

    def step(self, event: Event) -> None:
        for effect in self.core.step(event):
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Read():
                assert self.want is None, "one read at a time"
                self.want = effect
            case Fetch():
                found = [r for r in self.log if r.task_id in {k.task_id for k in effect.keys}]
                self.answers.append((OpenFetched(found, self.now_us), self.epoch))
            case Load():
                # Read now, delivered later: the core must bear an answer that is old.
                self.answers.append((ParkedLoaded(effect, self.due(effect), 0), self.epoch))
            case Dispatch():
                for attempt in effect.attempts:
                    self.started(attempt)

    def due(self, load: Load) -> list[Parked]:
        if load.task_ids:
            return [r for r in self.timers.values() if r.record.task_id in load.task_ids]
        if load.held_key is not None:
            rows = [r for r in self.timers.values() if r.held_key == load.held_key]
            rows.sort(key=lambda r: (r.record.sequence, r.record.task_id))
            return rows[: load.limit]
        keys = sorted(k for k in self.timers if load.after < k and k[0] <= load.until_us)
        return [self.timers[k] for k in keys[: load.limit]]

    def started(self, attempt: Attempt) -> None:
        record = attempt.record
        options = msgspec.json.decode(record.options or "{}", type=Options)
        assert record.task_id not in self.final, "started after it was settled"
        if record.task_id not in self.rescheduled:
            due_us = record.created_at_us + options.delay_us
            assert self.now_us >= due_us or not options.delay_us, "early"
        # One that was told nothing is due at its insert, also if the clock was set back since.
        assert attempt.due_at_us <= max(self.now_us, record.created_at_us), "early"
        assert self.now_us >= self.not_before_us.get(record.task_id, 0), "before it was put off to"
        if options.expires_in_us is not None:
            assert self.now_us < record.created_at_us + options.expires_in_us, "expired"
        for other in self.running:
            assert other.record.task_id != record.task_id, "twice at once"
            other_options = msgspec.json.decode(other.record.options or "{}", type=Options)
            if options.ordering_key is not None:
                assert other_options.ordering_key != options.ordering_key, "two of one key"
        self.judge_settings(record)
        self.judge_mark(attempt)
        self.running.append(attempt)
        self.starts.append(attempt)
        self.unrecorded.add(record.task_id)

    def judge_settings(self, record: Record) -> None:
        """Nothing of a paused queue starts, and never more at once than a queue may."""
        if any(s.running and s.task_id == record.task_id for s in self.last.suspects):
            return  # it was let through when its mark was asked for
        settings = self.queue_settings.get(record.queue, QueueSettings())
        assert not settings.paused, "started although it is paused"
        beside = sum(other.record.queue == record.queue for other in self.running)
        if isinstance(settings.concurrency, int):
            assert beside < settings.concurrency, "too many at once"

    def judge_mark(self, attempt: Attempt) -> None:
        """What a dead owner may have been running starts under a mark; suspects one by one."""
        task_id = attempt.record.task_id
        marks = {s.task_id for s in self.last.suspects if s.running}
        assert task_id not in self.tainted or task_id in marks, "started without its mark"
        self.tainted.discard(task_id)  # an attempt of its own will end, or this owner dies
        others = {each.record.task_id for each in self.running} - self.core.state.suspects.long
        if task_id in marks:
            assert not others & self.suspected, "marked beside a trial"
            assert task_id not in self.suspected or not others & marks, "a trial beside others"

    # -- what may happen next

    def read_page(self) -> None:
        """Answer the read that is wanted, if any."""
        if self.want is None:
            return
        begin = position_of(self.want.cursor)
        records = self.log[begin : begin + self.settings.page_size]
        end = records[-1].position if records else len(self.log)
        self.want = None
        page = Page(
            shard_id=self.shard_id,
            records=records,
            cursor=Cursor(str(end)),
            window="w",
            more=end < len(self.log),
            now_us=self.now_us,
        )
        if self.core.skip_page(page):
            self.want = Read(page.cursor)
        else:
            self.step(PageRead(page))

    def answer(self) -> None:
        """Deliver one answer that is on its way."""
        if self.answers:
            event, epoch = self.answers.pop(self.rng.randrange(len(self.answers)))
            if epoch == self.epoch:
                if isinstance(event, ParkedLoaded):
                    event = msgspec.structs.replace(event, now_us=self.now_us)
                self.step(event)

    def fail_answer(self) -> None:
        """A load or fetch that did not reach the store."""
        if self.answers:
            event, _ = self.answers.pop()
            request = Fetch(self.core.state.lease.open)
            self.step(LoadFailed(event.request if isinstance(event, ParkedLoaded) else request))

    def grant(self, slots: int, background: int | None = None) -> None:
        """Room for so many, and for so many more of the background; None: it may have all."""
        care = self.core.state.suspects.restricted("trial", self.now_us)
        rooms = {pool: self.asked.get(pool, 0) for pool in self.pools}
        began = len(self.running)
        below = {} if background is None else {"local": background}
        self.step(Grant(self.now_us, max(0, slots - len(self.running)), care, rooms, below))
        for attempt in self.running[began:]:
            if attempt.target in rooms:
                self.asked[attempt.target] -= 1

    def finish(self, attempt: Attempt, **how: object) -> None:
        """End one running attempt."""
        self.running.remove(attempt)
        if how.get("kind") != "interrupted":
            self.suspected.discard(attempt.record.task_id)
        fields = {"kind": "done", "started_at_us": self.now_us, "busy_us": 5, **how}
        outcome = Outcome(attempt=attempt, **fields)  # type: ignore[arg-type]
        self.limits.ended([outcome], self.now_us)
        self.step(Finished([outcome], self.now_us))

    def write(self) -> None:
        """The settlement reaches the store (perhaps again): applied once."""
        if self.out is None:
            self.out = self.core.settlement(self.now_us)
            self.applied_out = False
        if self.out is not None and not self.applied_out:
            self.apply(self.out)
            self.applied_out = True

    def acknowledge(self) -> None:
        """The owner learns that its settlement is written."""
        if self.out is not None and self.applied_out:
            self.out = None
            self.step(Settled(self.now_us))

    def apply(self, s: Settlement) -> None:
        assert s.seq == self.last.seq + 1, "the journal has a gap or a fork"
        assert position_of(s.cursor) >= position_of(self.last.cursor), "the cursor moved back"
        before = self.unsettled()
        self.judge_lost(s)
        self.last = s
        self.results |= {r.task_id: r.value for r in s.results}
        for key in s.unparked:
            assert self.timers.pop(key, None) is not None, "unparked what was not there"
        for row in s.parked:
            key = (row.due_at_us, row.record.task_id)
            assert key not in self.timers
            self.timers[key] = row
        self.unrecorded -= {row.record.task_id for row in s.parked}
        # A task that was put off is known by another due time than the dead owner knew.
        self.tainted -= {row.record.task_id for row in s.parked if row.reason == "delay"}
        self.dead += [letter.record.task_id for letter in s.dead]
        buried = {letter.record.task_id: letter for letter in s.dead}
        self.letters |= buried
        again = self.revive(s)
        # Ends are what was unsettled before and is accounted for by nothing now.
        accounted = self.accounted()
        for task_id in sorted(before - accounted):
            self.final[task_id] = "dead" if task_id in self.dead else "ended"
            self.ends.append(task_id)
            self.unrecorded.discard(task_id)
        self.steps += [(step.task_id, step.event) for step in s.history]
        self.arrived += sum(u.count for u in s.usage if u.outcome == ENQUEUED)
        assert self.arrived == position_of(s.cursor), "arrivals are not counted once each"
        ended = sum(
            u.count
            for u in s.usage
            if u.outcome in ("done", "dead", "expired", "discarded", "cancelled")
        )
        assert ended == len(before - accounted) + len(again & buried.keys()), (
            "usage does not add up"
        )
        for task_id in before - accounted:
            self.judge_command(self.record(task_id))
        assert len(s.open) <= self.settings.window

    def judge_lost(self, s: Settlement) -> None:
        """Attempts whose end is lost are counted once, by the first settlement of an owner."""
        known = self.last.open if self.last.seq == self.core.state.lease.seq else ()
        # Others whose process died took 5 microseconds each: see `finish`.
        lost = sum(u.count - u.busy_us // 5 for u in s.usage if u.outcome == LOST)
        assert lost == sum(task.started for task in known)
        begun = {attempt.record.task_id for attempt in self.starts if attempt.epoch == self.epoch}
        assert {task.task_id for task in s.open if task.started} <= begun, "said before it began"

    def revive(self, s: Settlement) -> set[str]:
        """Dead letters go back to the timer table; their task ids."""
        again = set()
        for revival in s.revived:
            letter = self.letters.pop(revival.task_id, None)
            if letter is None:
                continue
            again.add(revival.task_id)
            self.dead.remove(revival.task_id)
            self.final.pop(revival.task_id, None)
            self.timers[revival.due_at_us, revival.task_id] = Parked(
                letter.record, revival.due_at_us, "retry", errors=letter.errors
            )
        self.revived |= again
        self.tainted -= again
        return again

    def judge_command(self, record: Record) -> None:
        """The end of a command says what is true of its task from now on."""
        if record.task_id in self.letters:
            return  # it could not be read
        command = decode(record)
        if command is None or command.group == "other" or command.task_id == "a99999":
            return
        if self.record(command.task_id).name != "job":
            return
        task_id = command.task_id
        if command.kind == "cancel" and task_id not in self.revived:
            assert task_id in self.final, "a cancel is settled and its task is not"
        if command.kind == "reschedule" and task_id not in self.final:
            count = sum(r.name == record.name and decode(r).task_id == task_id for r in self.log)  # type: ignore[union-attr]
            if count == 1 and task_id not in self.revived:
                self.not_before_us[task_id] = command.due_us(record)

    def unsettled(self) -> set[str]:
        return {r.task_id for r in self.log} - self.final.keys()

    def accounted(self) -> set[str]:
        """Open, parked, or not covered by the checkpoint: each task in exactly one of them."""
        open_ids = [o.task_id for o in self.last.open]
        parked = [row.record.task_id for row in self.timers.values()]
        ahead = [r.task_id for r in self.log[position_of(self.last.cursor) :]]
        ids = [*open_ids, *parked, *ahead]
        assert len(ids) == len(set(ids)), "a task in two places"
        assert not set(ids) & self.final.keys(), "a settled task is back"
        return set(ids)

    # -- to the end

    def drain(self, passes: int = 3_000) -> None:
        """Everything goes well from here on, until nothing is left."""
        for _ in range(passes):
            self.read_page()
            while self.answers:
                self.answer()
            self.grant(4)
            for attempt in list(self.running):
                self.finish(attempt)
            self.write()
            self.acknowledge()
            if not self.unsettled():
                break
            self.now_us += SECOND // 4
        assert not self.unsettled(), sorted(self.unsettled())[:5]
        assert not self.timers

    def stop(self) -> None:
        """A clean hand-over."""
        self.step(Stop())
        for attempt in list(self.running):
            self.finish(attempt, kind="interrupted")
        while not self.core.state.clean:
            self.write()
            self.acknowledge()


def settle(world: World) -> None:
    world.write()
    world.acknowledge()


def answers(world: World) -> None:
    while world.answers:
        world.answer()


def running_ids(world: World) -> list[str]:
    return [attempt.record.task_id for attempt in world.running]
