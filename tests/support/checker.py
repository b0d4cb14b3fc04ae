"""The black-box checker: what the processes saw, against what the database says at the end.

Pure, and linear in the events of a run without repeats. It knows nothing of how `late` works:
only what was enqueued in which transaction, what was executed when and where, and what is left.

| class | holds |
|---|---|
| lost | committed, and neither done nor dead nor expired nor still there |
| phantom | executed although its transaction was rolled back |
| unexpected | executed although nobody ever enqueued it |
| duplicated | started again although no retry was due; each with what explains it |
| unexplained | those of `duplicated` that no death, fence or take-over explains |
| unrecorded | started again after the death of a worker in which it had ended long before |
| recovered | executed, and its commit had been answered by nobody: how it should be |
| double_settled | more ends in the database than tasks |
| zombie | a settlement of an old epoch that stood after a newer one had begun |
| early | started before its time by the database's clock |
| overlap | two executions of one task at once, under one epoch |
| stuck | a shard with waiting tasks on which nothing moved for too long, outside of faults |

Only `duplicated` and `recovered` may hold anything in a run that kept its promises.

Source: Jepsen's queue and Kafka checkers name the first classes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise

import msgspec

from tests.support.history import Event

_ENDS = ("done", "discarded")
"""Outcomes of an execution after which a task is over."""
_BREAKS = ("kill", "stop")
"""Faults that may end an execution before its outcome is settled."""

Place = tuple[str, int]
"""(group, shard)."""
Run = tuple[str, str]
"""(group, task)."""


class Truth(msgspec.Struct, frozen=True):
    """What the database itself says after the run."""

    committed: Set[str] = frozenset()
    """Transactions whose business rows are there: this resolves unknown commits."""
    waiting: Set[Run] = frozenset()
    """Still in the log beyond the cursor, open or parked: not lost, but not done."""
    dead: Sequence[Run] = ()
    """Dead letters, one entry per row."""
    expired: Set[Run] = frozenset()
    ended: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Per group: how many ends the journal's usage adds up to, of whatever outcome."""
    journal: Sequence[tuple[str, int, int, int]] = ()
    """(group, shard, seq, epoch) of every settlement that is still there."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One thing that was found, and why."""

    what: str
    """A task as `group/task`, or a shard as `group/#shard`."""
    why: str


class Verdict(msgspec.Struct):
    """All findings by class; see the module."""

    lost: list[Finding] = msgspec.field(default_factory=list)
    phantom: list[Finding] = msgspec.field(default_factory=list)
    unexpected: list[Finding] = msgspec.field(default_factory=list)
    duplicated: list[Finding] = msgspec.field(default_factory=list)
    unexplained: list[Finding] = msgspec.field(default_factory=list)
    unrecorded: list[Finding] = msgspec.field(default_factory=list)
    recovered: list[Finding] = msgspec.field(default_factory=list)
    double_settled: list[Finding] = msgspec.field(default_factory=list)
    zombie: list[Finding] = msgspec.field(default_factory=list)
    early: list[Finding] = msgspec.field(default_factory=list)
    overlap: list[Finding] = msgspec.field(default_factory=list)
    stuck: list[Finding] = msgspec.field(default_factory=list)

    @property
    def broken(self) -> dict[str, list[Finding]]:
        """The classes that must be empty and are not."""
        allowed = ("duplicated", "recovered")
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: each for name, each in found.items() if each and name not in allowed}


def check(
    events: Iterable[Event],
    truth: Truth,
    *,
    groups: Sequence[str] = ("default",),
    stuck_s: float = 15.0,
    recorded_s: float | None = None,
) -> Verdict:
    """Judge one run that was drained: every fault healed, and time given to finish.

    Args:
        events: the merged history, in any order.
        groups: every group must have run every task.
        stuck_s: how long a shard with waiting tasks may stand still outside of faults.
        recorded_s: how long before the death of its worker a task may have ended that is started
            again. None in a run in which the database could not be reached, or a worker slept.
    """
    history = _History(sorted(events, key=lambda event: event.t), truth)
    verdict = Verdict()
    _existence(history, truth, groups, verdict)
    for run, executions in history.executions.items():
        _repeats(history, run, executions, verdict)
        if recorded_s is not None:
            verdict.unrecorded += _unrecorded(history, run, executions, round(recorded_s * 1e9))
    verdict.double_settled += _double_settled(history, truth)
    verdict.zombie += _zombies(history, truth)
    verdict.stuck += _stuck(history, round(stuck_s * 1e9))
    return verdict


class _Execution(msgspec.Struct):
    start: Event
    end: Event | None = None


class _History:
    """The events, sorted into what the checks ask for."""

    def __init__(self, events: Sequence[Event], truth: Truth) -> None:
        self.executions: dict[Run, list[_Execution]] = defaultdict(list)
        self.settles: list[Event] = []
        self.takeovers: dict[Place, list[Event]] = defaultdict(list)
        self.depths: dict[Place, list[Event]] = defaultdict(list)
        self.moves: dict[Place, list[int]] = defaultdict(list)
        self.faults: list[Event] = []
        self.not_before_us: dict[str, int] = {}
        tx_of: dict[str, str] = {}
        answers: dict[str, str] = {}
        for event in events:
            match event.f:
                case "enqueue":
                    tx_of[event.task] = event.tx
                    self.not_before_us[event.task] = event.at_us
                case "commit":
                    answers[event.tx] = event.type
                case "exec_start":
                    self.executions[event.group, event.task].append(_Execution(event))
                    self.moves[event.group, event.shard].append(event.t)
                case "exec_end":
                    self._end(event)
                case "settle":
                    self.settles.append(event)
                    if event.type == "ok":
                        self.moves[event.group, event.shard].append(event.t)
                case "lease":
                    self.takeovers[event.group, event.shard].append(event)
                case "depth":
                    self.depths[event.group, event.shard].append(event)
                case "fault":
                    self.faults.append(event)
        kept = {tx for tx, answer in answers.items() if answer == "ok"} | truth.committed
        self.attempted = set(tx_of)
        self.committed = {task for task, tx in tx_of.items() if tx in kept}
        self.unanswered = {
            task for task in self.committed if answers.get(tx_of[task], "invoke") != "ok"
        }

    def _end(self, event: Event) -> None:
        for execution in reversed(self.executions[event.group, event.task]):
            same = execution.start.p == event.p and execution.start.attempt == event.attempt
            if same and execution.end is None:
                execution.end = event
                return


def _named(run: Run) -> str:
    return f"{run[0]}/{run[1]}"


def _existence(history: _History, truth: Truth, groups: Sequence[str], verdict: Verdict) -> None:
    """What should have been executed, against what was."""
    over = set(truth.dead) | truth.expired | truth.waiting
    for group in groups:
        for task in sorted(history.committed):
            run = (group, task)
            ends = [e.end.word for e in history.executions.get(run, ()) if e.end is not None]
            if run not in over and not any(word in _ENDS for word in ends):
                starts = len(history.executions.get(run, ()))
                verdict.lost.append(Finding(_named(run), f"started {starts} times, never ended"))
    for run in history.executions:
        if run[1] not in history.attempted:
            verdict.unexpected.append(Finding(_named(run), "nobody enqueued it"))
        elif run[1] not in history.committed:
            verdict.phantom.append(Finding(_named(run), "its transaction was rolled back"))
        elif run[1] in history.unanswered:
            verdict.recovered.append(Finding(_named(run), "its commit was never answered"))


def _repeats(
    history: _History, run: Run, executions: Sequence[_Execution], verdict: Verdict
) -> None:
    """The starts of one task, one after the other."""
    not_before_us = history.not_before_us.get(run[1], 0)
    for execution in executions:
        if execution.start.at_us < not_before_us:
            early_us = not_before_us - execution.start.at_us
            verdict.early.append(Finding(_named(run), f"{early_us} us too early"))
    for before, after in pairwise(executions):
        ended = before.end is not None and before.end.t <= after.start.t
        if not ended and before.start.epoch == after.start.epoch and not _broken(history, before):
            verdict.overlap.append(Finding(_named(run), f"twice at once in {before.start.epoch}"))
        if ended and before.end is not None and before.end.word not in _ENDS:
            continue  # a retry
        why = _explanation(history, run, before, after)
        verdict.duplicated.append(Finding(_named(run), why or "nothing explains it"))
        if why is None:
            verdict.unexplained.append(Finding(_named(run), "started again for no reason"))


def _unrecorded(
    history: _History, run: Run, executions: Sequence[_Execution], limit_ns: int
) -> Iterator[Finding]:
    """What was repeated although its end should have been in the journal when its worker died."""
    for before, after in pairwise(executions):
        end = before.end
        if end is None or end.word not in _ENDS:
            continue
        place = (run[0], before.start.shard)
        taken = [e.t for e in history.takeovers.get(place, ()) if e.epoch > before.start.epoch]
        until = min([after.start.t, *taken])
        deaths = [
            fault.t
            for fault in history.faults
            if fault.word == "kill" and fault.target == end.p and end.t <= fault.t <= until
        ]
        if deaths and deaths[0] - end.t > limit_ns:
            waited_s = (deaths[0] - end.t) / 1e9
            yield Finding(_named(run), f"ended {waited_s:.1f} s before {end.p} died")


def _broken(history: _History, execution: _Execution) -> bool:
    """Whether the execution was cut off by the death of its process."""
    start = execution.start
    return any(
        fault.word == "kill" and fault.target == start.p and fault.t >= start.t
        for fault in history.faults
    )


def _explanation(history: _History, run: Run, before: _Execution, after: _Execution) -> str | None:
    """What between the two starts could have kept the first one from being settled."""
    first, second = before.start, after.start
    for fault in history.faults:
        within = first.t <= fault.t <= second.t
        if within and fault.word in _BREAKS and fault.target in (first.p, ""):
            return f"{fault.word} of {first.p}"
    if second.epoch != first.epoch:
        return f"taken over: epoch {first.epoch} to {second.epoch}"
    for takeover in history.takeovers.get((run[0], first.shard), ()):
        if first.t <= takeover.t <= second.t and takeover.epoch > first.epoch:
            return f"fenced by epoch {takeover.epoch}"
    return None


def _double_settled(history: _History, truth: Truth) -> Iterator[Finding]:
    for run, count in Counter(truth.dead).items():
        if count > 1:
            yield Finding(_named(run), f"{count} dead letters")
    for group, ended in sorted(truth.ended.items()):
        if ended > len(history.committed):
            why = f"{ended} ends of {len(history.committed)} tasks"
            yield Finding(f"{group}/*", why)


def _zombies(history: _History, truth: Truth) -> Iterator[Finding]:
    newest: dict[Place, tuple[int, int]] = {}
    for group, shard, seq, epoch in sorted(truth.journal):
        last_seq, last_epoch = newest.get((group, shard), (0, 0))
        if epoch < last_epoch:
            why = f"seq {seq} is of epoch {epoch}, {last_seq} of {last_epoch}"
            yield Finding(f"{group}/#{shard}", why)
        newest[group, shard] = (seq, max(epoch, last_epoch))
    invoked: dict[tuple[str, Place, int], int] = {}
    for event in history.settles:
        place = (event.group, event.shard)
        key = (event.p, place, event.epoch)
        if event.type == "invoke":
            # One without an answer is sent again, the same: it may have committed the first time.
            invoked.setdefault(key, event.t)
        elif event.type == "fail":
            invoked.pop(key, None)
        elif event.type == "ok":
            # It may have committed as soon as it was sent: only what was sent later is certain.
            sent = invoked.pop(key, event.t)
            for takeover in history.takeovers.get(place, ()):
                if takeover.epoch > event.epoch and takeover.t < sent:
                    why = f"epoch {event.epoch} settled after {takeover.epoch} had begun"
                    yield Finding(f"{event.group}/#{event.shard}", why)
                    break


def _stuck(history: _History, limit_ns: int) -> Iterator[Finding]:
    faults = [fault.t for fault in history.faults]
    for (group, shard), depths in sorted(history.depths.items()):
        moves = history.moves.get((group, shard), [])
        since: int | None = None
        for depth in depths:
            if depth.n == 0 or since is None:
                since = depth.t if depth.n else None
                continue
            # The last thing that moved, or disturbed, starts the wait anew.
            for times in (moves, faults):
                last = bisect_right(times, depth.t)
                if last > bisect_left(times, since):
                    since = times[last - 1]
            if depth.t - since > limit_ns:
                why = f"{depth.n} wait, nothing moved for {(depth.t - since) / 1e9:.1f} s"
                yield Finding(f"{group}/#{shard}", why)
                break
