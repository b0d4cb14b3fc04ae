"""What is asked of tasks of a simulated world after they were enqueued, and the judge of it.

| invariant | judged at |
|---|---|
| S17 once a cancel is recorded, no owner who could know it starts the task | each start |
| S18 once a reschedule is recorded, nobody who could know it starts the task before | each start |
| S19 cancelled is only what somebody cancelled; a redrive moves a dead letter, once | settlement |

Not in worlds on CockroachDB: its tail may show a row after others that were committed later, so
that a command may find nothing (design note 0006).
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

import msgspec

from late.model.task import NewTask, Record, TaskId
from late.payload.command import NAMES, PREFIX, QUEUE, Kind, decode

SHARE = 0.4
"""Of worlds that have any."""


class Order(msgspec.Struct, frozen=True):
    """A command for a task that is in the log at `at_s`; if it is not, nothing is asked."""

    at_s: float
    target: TaskId
    row: NewTask
    together: bool
    """In the transaction of the task itself."""


class Mark(msgspec.Struct):
    """What was asked of one task in one group, as far as it is recorded."""

    cancelled: int | None = None
    """The epoch under which it was."""
    put_off: tuple[int, int] = (0, 0)
    """(epoch, due time) of its only reschedule."""


def draw(
    rng: random.Random, booked: Sequence[tuple[float, NewTask]], groups: Sequence[str]
) -> tuple[Order, ...]:
    """Orders for some of `booked`: (when it commits, task); at most one reschedule of a task."""
    if rng.random() > SHARE or not booked:
        return ()
    found: list[Order] = []
    doomed = [each for each in booked if b'"fails":9' in each[1].payload]
    moved: set[str] = set()
    for number in range(rng.randint(3, 25)):
        kind: Kind = rng.choice(("cancel", "reschedule", "redrive", "redrive"))
        if kind == "redrive" and not doomed:
            kind = "cancel"
        at_s, task = rng.choice(doomed if kind == "redrive" else booked)
        together = kind != "redrive" and rng.random() < 0.2
        # Letters are written some seconds after their tasks.
        wait_s = rng.uniform(2, 8) if kind == "redrive" else rng.expovariate(1)
        body: dict[str, object] = {"task_id": task.task_id}
        if kind == "reschedule":
            if task.task_id in moved:
                continue
            moved.add(task.task_id)
            body["delay_us"] = round(rng.choice((0, 0.5, 3)) * 1e6)
        if rng.random() < 0.2:
            body["group"] = rng.choice(groups)
        row = NewTask(
            shard_id=task.shard_id,
            task_id=TaskId(f"{task.task_id[:19]}a000-{number:012x}"),
            queue=QUEUE,
            name=f"{PREFIX}{kind}",
            payload=msgspec.json.encode(body),
        )
        found.append(Order(at_s + (0 if together else wait_s), task.task_id, row, together))
    return tuple(found)


class Orders:
    """Who has asked what of which task, and what is true of it since. Part of `Truth`."""

    def __init__(self) -> None:
        self._cancels: set[tuple[str, str | None]] = set()
        """(task, group), None for all groups."""
        self._touched: set[str] = set()
        self._early: set[str] = set()
        """Commands that came into the log before their tasks, which are stages."""
        self.dropped: set[str] = set()
        """Workflows of which a reset has left out a task."""
        self._marks: dict[tuple[str, str], Mark] = {}
        """(group, task) -> what is recorded."""

    def committed(self, record: Record, known: Container[str]) -> None:
        """It is in the log now, with all that is `known`, and perhaps a command."""
        command = decode(record) if record.name in NAMES else None
        if command is not None:
            if command.task_id not in known:
                self._early.add(record.task_id)
            self._touched.add(command.task_id)
            if command.kind == "cancel":
                self._cancels.add((command.task_id, command.group))

    def touched(self, task_id: str) -> bool:
        """Whether anything was asked of it: it may be anywhere in the order of its key."""
        return task_id in self._touched

    def cancels(self, task_id: str, group: str) -> bool:
        """Whether anybody has cancelled it."""
        return bool({(task_id, None), (task_id, group)} & self._cancels)

    def ended(self, group: str, record: Record, epoch: int) -> None:
        """A command is recorded as carried out: what it has asked holds from now on.

        Not for a stage that came into the log behind it: the command was carried out before that,
        however late it is recorded, and a workflow goes by the first group alone.
        """
        command = decode(record)
        assert command is not None, "a command"
        if record.task_id in self._early:
            return
        if command.group not in (None, group) or command.kind == "redrive":
            return
        mark = self._marks.setdefault((group, command.task_id), Mark())
        if command.kind == "cancel":
            mark.cancelled = epoch
        else:
            mark.put_off = epoch, command.due_us(record)

    def revived(self, group: str, task_id: str) -> None:
        """A dead letter runs again: what was asked of it before is over."""
        self._marks.pop((group, task_id), None)

    def objection(self, group: str, task_id: str, epoch: int, now_us: int) -> str | None:
        """Why it must not be started by the owner of this epoch."""
        mark = self._marks.get((group, task_id))
        if mark is None:
            return None
        if mark.cancelled is not None and epoch >= mark.cancelled:
            return f"S17: {task_id} was started, it was cancelled"
        if epoch >= mark.put_off[0] and now_us < mark.put_off[1]:
            early_s = (mark.put_off[1] - now_us) / 1e6
            return f"S18: {task_id} was started {early_s:.3f} s before the time it was put off to"
        return None
