"""The state machine of one (consumer group, shard): events in, effects out, nothing else.

No clock, random, await, store or network. The loop in `scheduler.py` and the simulator drive the
same object. Exactly one worker holds it at a time; the settlement journal fences the others.

Rules, in the order in which they matter:

1. A task that was read is in `window` until its end, or its parking, is in the journal.
2. A task that is in the timer table and in memory is in `timers.parked` until the journal says
   that its row is gone.
3. One settlement is out at a time. Its content never changes, so it can be repeated while its
   outcome is unknown; what ends meanwhile goes into the next one.
4. Nothing starts before its due time by the database's clock, before the records of the
   checkpoint's `open` are back, or after `Stop`.
5. A retry is durable before it can start: it waits for the settlement that parks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from late.model.lanes import Gate
from late.model.task import HELD_US, DeadLetter, Outcome, Policy, Reason, TaskId
from late.model.validation import is_name
from late.scheduler import events_effects as m
from late.scheduler.core.commands import Commands
from late.scheduler.core.outcome_rules import DEATHS_MAX, decide_outcome, killed
from late.scheduler.core.reads import CoreReads
from late.scheduler.limits.limits import LOCAL_POOL, Limits
from late.scheduler.settings import CoreSettings
from late.scheduler.task_state import POSTPONED, Entry, first_due_us
from late.store.base import Lease, Settlement


class ShardCore(CoreReads):
    """See the module. `step` is not re-entrant; all calls come from one loop."""

    def __init__(
        self,
        lease: Lease,
        policies: Mapping[str, Policy],
        settings: CoreSettings | None = None,
        limits: Limits | None = None,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(lease, policies, settings, limits, gate)
        self._commands = Commands(
            lease.group, self._window, self._timers, self._keys, self, self._draft.revive,
            self._draining.read,
        )  # fmt: skip

    # ------------------------------------------------------------------ events

    def step(self, event: m.Event) -> list[m.Effect]:
        """Take one event; return what is to be done, in order."""
        effects: list[m.Effect] = []
        self.quiet_until_us = 0
        match event:
            case m.Grant():
                self._now_us = event.now_us
                self._grant({**event.rooms, LOCAL_POOL: event.slots}, event.care, effects)
            case m.Finished():
                self._now_us = event.now_us
                self._finished(event.outcomes)
            case m.PageRead():
                self._page_read(event)
            case m.Settled():
                self._now_us = event.now_us
                self._settled(effects)
            case m.ParkedLoaded():
                self._now_us = event.now_us
                self._parked_loaded(event.request, event.parked)
            case m.OpenFetched():
                self._now_us = event.now_us
                self._open_fetched(event.records)
            case m.LoadFailed():
                self._load_failed(event.request)
            case m.SchedulesRead():
                self._recurring.replace(event.schedules)
            case m.Stop():
                self._stopped = True
        if self._commands:
            self._commands.run(self._now_us, full=self._full)
        if self._draft.out is None and self._settle_due():
            effects.append(m.SettleSoon(len(self._draft) + self.caution.asked))
        self._ask(effects)
        if not effects and isinstance(event, m.Grant):
            self.quiet_until_us = self._quiet_us()
        return effects

    def _judge_new(self, entry: Entry) -> None:
        """A record without options and with a handler, nearly every one, takes the short way."""
        record = entry.record
        if self.caution.deaths:
            self.caution.recall(entry)
        plain = record.options is None and entry.known and is_name(record.queue)
        if plain and not entry.deaths:
            entry.due_at_us = record.created_at_us
            entry.state = "ready"  # it is `logged`: `move` would look that up
            self._ready.push(entry)
            return
        fault = None if plain else entry.inspect()
        if fault is not None:
            self.bury(entry, fault)
            return
        entry.due_at_us = first_due_us(record, entry.options)
        if record.options is not None and entry.due_at_us > self._now_us:
            entry.due_at_us += self._limits.spread_us(entry)
            self._wait(entry)
        else:
            self._due(entry)

    def _wait(self, entry: Entry) -> None:
        """Due later: in memory when that is soon (or durable elsewhere), else in the table."""
        if entry.timer_key is None and (
            entry.due_at_us - self._now_us > self._settings.near_us
            or len(self._window) > self._settings.window // 2
        ):
            self._draft.note(entry, "delayed", self._now_us, until_us=entry.due_at_us)
            self._park(entry, entry.due_at_us, "delay")
        else:
            entry.move("waiting")
            self._timers.wait(entry)

    def _due(self, entry: Entry) -> None:
        """Its time has come: ready, or held behind its ordering key."""
        name = entry.options.ordering_key
        if name is not None and not self._keys.admit(name, entry):
            entry.move("held")
            entry.held_since_us = self._now_us
        else:
            self._start(entry)

    def _start(self, entry: Entry) -> None:
        """It may run, as soon as there is a slot."""
        if entry.deaths >= DEATHS_MAX:
            entry.errors = killed(entry, self._now_us)
            self.bury(entry, "killed_worker")
            return
        if not entry.known:
            if not self._commands.arrived(entry):
                self._unknown(entry)
            return
        entry.move("ready")
        self._ready.push(entry)

    def _unknown(self, entry: Entry) -> None:
        """No handler here: perhaps a deploy is under way. Looked at again, attempts unburnt."""
        if self._now_us - entry.record.created_at_us >= self._settings.unknown_max_us:
            self.bury(entry, "unknown_task")
        else:
            due_at_us = self._now_us + self._settings.unknown_us
            self._park(entry, due_at_us, "unknown", holds=True)

    def _start_head(self, entry: Entry | None) -> None:
        """`entry`, if any, holds its ordering key now; what has expired meanwhile lets it go."""
        while entry is not None and self._expire(entry):
            name = entry.options.ordering_key
            entry = self._keys.release(name, entry) if name is not None else None
        if entry is not None:
            self._start(entry)

    # ------------------------------------------------------------------ starting

    def _grant(self, rooms: dict[str, int], care: m.Care, effects: list[m.Effect]) -> None:
        ready, caution = self._ready, self.caution
        ready.open(self._now_us, rooms)
        for entry in self._timers.pop_due(self._now_us):
            self._due(entry)
        self._park_long_held()
        if self._stopped or not self._recovered or max(rooms.values()) <= 0:
            return
        self._call_back(effects)
        begun: list[Entry] = []
        for entry in caution.crowd(max(0, rooms[LOCAL_POOL]), care):
            self._begin_if(ready.admit(entry), entry, begun)
        put_off = None
        if self._wary_until_us >= 0:
            put_off = partial(caution.puts_off, care=care, until_us=self._wary_until_us)
        else:
            self._begin_all(ready.unlimited(), begun)
        while (next_one := ready.next(put_off)) is not None:
            self._begin(next_one, begun)
        for entry in caution.suspect(care):  # one more than there is room, or it might never start
            self._begin_if(ready.admit(entry, extra=True), entry, begun)
        self._dispatch(begun, effects)

    def _begin_if(self, admitted: bool, entry: Entry, begun: list[Entry]) -> None:
        if admitted:
            self._begin(entry, begun)
        else:
            self._ready.push(entry)

    def _begin(self, entry: Entry, begun: list[Entry]) -> None:
        """From here on it counts as started: at once, or as soon as its mark is in the journal."""
        if entry.state != "ready":
            self._ready.undo(entry)
            return  # cancelled or put off while it stood in line
        if (self._limits.any or entry.record.options is not None) and self._expire(entry):
            self._ready.undo(entry)
            self._release_key(entry)
            return
        entry.move("running")
        self._window.cover(entry)
        self.running += 1
        if entry.record.created_at_us <= self._wary_until_us and self.caution.concerns(entry):
            self.caution.mark(entry)
        else:
            begun.append(entry)

    def _begin_all(self, entries: Sequence[Entry], begun: list[Entry]) -> None:
        """As `_begin` of each, where no task is under suspicion: the way of nearly all."""
        plain = not self._limits.any
        for entry in entries:
            if plain and entry.state == "ready" and entry.record.options is None:
                entry.state = "running"  # `move` would ask once more
                self.running += 1
                begun.append(entry)
            else:
                self._begin(entry, begun)
        self._window.cover_all(begun)

    def _dispatch(self, entries: Sequence[Entry], effects: list[m.Effect]) -> None:
        attempts = [entry.attempt(self.lease) for entry in entries]
        if self._limits.any:
            attempts = [self._limits.timed(attempt) for attempt in attempts]
        if attempts:
            effects.append(m.Dispatch(attempts))

    def _expire(self, entry: Entry) -> bool:
        if not self._is_expired(entry):
            return False
        self._end_unrun(entry, "expired")
        return True

    def _park_long_held(self) -> None:
        """Tasks that wait behind their key for long leave the window for the timer table."""
        if not self._look_due:
            return
        self._looked_at_us = self._now_us
        for entry in self._keys.opened():
            self._start_head(entry)
        self._draining.look()
        pressed = len(self._window) > self._settings.window - self._settings.page_size
        since_us = self._now_us - (0 if pressed else self._settings.park_after_us)
        most = self._settings.limited_max
        if self._ready.limited > most or (self._ready.limited and pressed):
            for entry, again_us, reason in self._ready.surplus(most // 2):
                self._park(entry, again_us, reason, holds=True)
        for entry in self._keys.park_waiting(since_us, self._is_ready):
            if entry.timer_key is not None and entry.timer_key[0] == HELD_US:
                del self._timers.parked[entry.record.task_id]  # its row is as it must be
                entry.move("parked")
            else:
                self._park(entry, HELD_US, "held", holds=True)

    # ------------------------------------------------------------------ ending

    def _finished(self, outcomes: Sequence[Outcome]) -> None:
        done: list[Outcome] = []
        plain: dict[TaskId, Entry] = {}
        logged, parked = self._window.entries, self._timers.parked
        epoch, deaths = self.lease.epoch, self.caution.deaths
        for outcome in outcomes:
            attempt = outcome.attempt
            task_id = attempt.record.task_id
            entry = logged.get(task_id) or parked.get(task_id)
            if (
                entry is None
                or entry.state != "running"
                or attempt.epoch != epoch
                or attempt.number != entry.attempts + 1
            ):
                self.late += 1
                continue
            self.running -= 1
            if self.caution.marked:
                self.caution.ended(task_id, again=outcome.kind == "interrupted")
            if outcome.kind != "done":
                self._apply(entry, outcome)
                continue
            done.append(outcome)
            if (
                entry.record.options is None
                and entry.timer_key is None
                and not (entry.policy.history or entry.policy.result_ttl_us or deaths)
            ):
                entry.state = "done"  # it is `running`: `move` would look that up
                plain[task_id] = entry
                continue
            if entry.policy.history:
                self._draft.note(entry, "done", self._now_us, outcome)
            self._end(entry, "done", outcome.result)
            if entry.options.ordering_key is not None:
                self._release_key(entry)
        self._draft.ledger.add_done(done)
        self._draft.end_all(plain)

    def _apply(self, entry: Entry, outcome: Outcome) -> None:
        stalled = outcome.kind == "failed" and self._limits.stalled(entry)
        verdict = decide_outcome(entry, outcome, self._now_us, self.lease.owner, stalled=stalled)
        verdict = self._commands.overruled(entry, verdict)
        entry.attempts, entry.deaths = verdict.attempts, verdict.deaths
        entry.errors = verdict.errors
        self._draft.ledger.add(outcome, verdict.word, ended=verdict.final is not None)
        self._draft.note(entry, verdict.word, self._now_us, outcome,
                         until_us=verdict.due_at_us, reason=verdict.reason)  # fmt: skip
        if verdict.again:  # interrupted: first in line, nothing durable has changed
            entry.move("ready")
            self._ready.push_front(entry)
        elif verdict.final == "dead":
            self.bury(entry, verdict.reason)
        elif verdict.final is not None:
            self._end(entry, verdict.final)
            self._release_key(entry)
        else:
            assert verdict.parked is not None
            self._park(entry, verdict.due_at_us, verdict.parked, holds=True)

    def bury(self, entry: Entry, reason: str) -> None:
        """To the dead letters."""
        if entry.state == "running":
            self._end(entry, "dead")
        else:
            self._end_unrun(entry, "dead", reason)
        self._draft.dead(
            DeadLetter(entry.record, reason, entry.attempts, entry.deaths, entry.errors)
        )
        self._release_key(entry)

    def conclude(self, entry: Entry, state: str) -> None:
        """For commands: see `Hands`."""
        self._end_unrun(entry, state)
        self._release_key(entry)

    def put_off(self, entry: Entry, due_at_us: int) -> None:
        """For commands: see `Hands`. What holds its ordering key goes on holding it."""
        holds = self._keys.is_holder(entry.options.ordering_key, entry)
        self._draft.note(entry, "rescheduled", self._now_us, until_us=due_at_us)
        self._park(entry, due_at_us, "delay", holds=holds)

    def _end_unrun(self, entry: Entry, state: str, reason: str | None = None) -> None:
        self._draft.note(entry, state, self._now_us, reason=reason)
        self._draft.ledger.add_final(entry.record, state)
        self._end(entry, state)

    def _end(self, entry: Entry, state: str, result: bytes | None = None) -> None:
        entry.move(state)
        self._window.cover(entry)
        self._draft.end(entry, result)
        if self.caution.deaths:
            self.caution.deaths.pop(entry.record.task_id, None)
        if entry.options.schedule is not None:
            self._recurring.ended(entry.options.schedule, entry.record.task_id)

    def _release_key(self, entry: Entry) -> None:
        name = entry.options.ordering_key
        if name is not None:
            self._start_head(self._keys.release(name, entry))

    def _park(self, entry: Entry, due_at_us: int, reason: Reason, *, holds: bool = False) -> None:
        """Into the timer table with the next settlement; `holds`: its ordering key stays blocked,
        by it or for it."""
        row = entry.parked(due_at_us, reason, holds=holds)
        ran = entry.state == "running"
        entry.move("parked")
        entry.due_at_us = due_at_us
        entry.postponed = reason in POSTPONED
        entry.unfetched = reason == "unfetched"
        self._window.cover(entry)
        self._draft.park(entry, row, ran=ran)

    # ------------------------------------------------------------------ settling

    def settlement(self, now_us: int) -> Settlement | None:
        """The next settlement, or None if nothing is to be settled or one is still out.

        The caller writes it until it knows the outcome, and says `Settled`; fenced, it throws the
        core away.
        """
        self._now_us = max(self._now_us, now_us)
        if self._draft.out is not None or not self._recovered:
            return None
        ticks = () if self._stopped else self._recurring.take_due(self._now_us)
        if not ticks and not self._written_due():
            return None
        told = self._draining.told()
        return self._draft.build(self._window, ticks, self.caution, self._now_us, told)

    def _settled(self, effects: list[m.Effect]) -> None:
        settlement, ended, parked = self._draft.settled(self._now_us)
        self._dispatch(self._marked(), effects)
        self._timers.rows_changed(settlement.unparked, new=bool(settlement.revived))
        self._commands.settled(settlement.revived)
        for task_id in self._window.forget_all([*ended, *parked]):
            self._timers.parked.pop(task_id, None)
        for task_id, (entry, row) in parked.items():
            entry.index = None
            entry.timer_key = (row.due_at_us, task_id)
            if row.reason == "held":
                assert row.held_key is not None
                self._keys.parking_settled(row.held_key)
            elif self._timers.in_memory(entry.timer_key):
                self._timers.parked[task_id] = entry
                entry.move("waiting")
                self._timers.wait(entry)
            elif entry.unfetched:
                self._calling.went(entry.policy.target)
        self._shrink()

    def _marked(self) -> list[Entry]:
        """What may start, now that its mark is in the journal."""
        begun = []
        for entry in self.caution.settled():
            if not self._stopped and not self._expire(entry):
                begun.append(entry)
                continue
            self.running -= 1
            self._ready.undo(entry)
            self.caution.ended(entry.record.task_id, again=True)
            if entry.state == "expired":
                self._release_key(entry)
            else:
                entry.move("ready")
                self._ready.push_front(entry)
        return begun
