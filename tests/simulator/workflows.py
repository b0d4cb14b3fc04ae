"""Workflows of a simulated world, and the judge of them. Not in worlds on CockroachDB.

| invariant | judged at |
|---|---|
| S21 a stage starts once, when all before it were done, or (`on_failure`) one failed | start |
| E9 a stage before which all is done was started, but in a workflow that was cancelled | end |
| E10 no stage waits in a cancelled workflow, and none is open whose task has ended | end |

The rows are changed by `late.model.workflow`; the judge asks only what the journals say of tasks.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from late.model.task import NewTask, Options, TaskId
from late.model.workflow import OPEN, STARTED, STOPPING, WAITING, Stage, changes
from late.payload.command import NAMES, PREFIX, QUEUE, decode
from late.store.base import Settlement
from late.testing.workflows import StagesInMemory
from tests.simulator.job import Job
from tests.simulator.jumps import EPOCH_US
from tests.simulator.truth import Broken, Truth

FIRST_SEED = 600_000
"""Worlds of lower seeds have none: they are what they were when they were first looked at."""
SHARE = 0.5
"""Of the other worlds that have any."""


class Flow(msgspec.Struct, frozen=True):
    """A producer commits a workflow."""

    at_s: float
    stages: tuple[Stage, ...]
    cancels: tuple[tuple[float, TaskId], ...] = ()
    """When somebody cancels which of its tasks, whether that has started or not."""


def draw(seed: int, live_s: float, shards: int) -> tuple[Flow, ...]:
    """The workflows of a world, in order of time."""
    rng = random.Random(seed ^ 0xF10F)
    if seed < FIRST_SEED or rng.random() > SHARE:
        return ()
    made = 0

    def flow() -> Flow:
        nonlocal made
        at_s = rng.uniform(0, live_s)
        count = rng.choice((2, 3, 5, 9))
        after: list[tuple[int, ...]] = []
        for number in range(count):
            most = min(number, rng.choice((1, 1, 3)))
            after.append(tuple(sorted(rng.sample(range(number), rng.randint(min(1, most), most)))))
        fails = rng.random() < 0.4
        ids = []
        for _ in range(count + fails):
            made += 1
            high = f"{EPOCH_US // 1_000 + round(at_s * 1e3):012x}"
            shard_id = rng.randrange(shards)
            ids.append(TaskId(f"{high[:8]}-{high[8:]}-7{shard_id:03x}-b000-{made:012x}"))
        stages = tuple(
            _stage(rng, ids, number, after, count if fails else None)
            for number in range(count + fails)
        )
        cancels = [
            (at_s + rng.expovariate(0.7), rng.choice(ids))
            for _ in range(rng.choice((0, 0, 0, 1, 2)))
        ]
        return Flow(at_s, stages, tuple(cancels))

    return tuple(sorted((flow() for _ in range(rng.randint(1, 6))), key=lambda flow: flow.at_s))


def _stage(
    rng: random.Random, ids: list[TaskId], number: int, after: list[tuple[int, ...]],
    on_failure: int | None,
) -> Stage:  # fmt: skip
    before = after[number] if number < len(after) else ()
    alone = number == on_failure
    job = Job(takes_s=rng.choice((0.001, 0.05, 0.4)), fails=rng.choice((0, 0, 0, 1, 9)))
    options = Options(stage=True, delay_us=600_000 if rng.random() < 0.2 else 0)
    return Stage(
        ids[0], number, ids[number], int(ids[number][15:18], 16),
        WAITING if before or alone else STARTED, 1 if alone else len(before), before,
        tuple(n for n, each in enumerate(after) if number in each), False,
        None if alone else on_failure, None, "default", "job", msgspec.json.encode(job),
        None, msgspec.json.encode(options).decode(),
    )  # fmt: skip


class Flows:
    """The rows of `late_stage`, and the judge."""

    def __init__(self, truth: Truth) -> None:
        self.stages = StagesInMemory()
        self._truth = truth
        self._commands = 0
        self._unsure: set[str] = set()
        """Workflows of which a reset has left out a cancel: it may have been carried out before."""

    def committed(self, flow: Flow) -> list[NewTask]:
        """Take in the rows; return the tasks that wait for nothing."""
        rows = [msgspec.structs.replace(stage) for stage in flow.stages]
        self.stages.add(rows)
        return [row.task() for row in rows if row.state == STARTED]

    def settled(self, s: Settlement, now_us: int) -> list[NewTask]:
        """Carry out the ends of a settlement that is judged; return the rows that it inserts."""
        found = changes(s.ended_stages, self.stages, now_us)
        for task in found.started:
            self._judge_start(task.task_id)
        for task_id in found.stopping:
            # It came into the log behind the cancel that was carried out: another one follows it.
            for group in self._truth.groups:
                self._truth.orders.revived(group, task_id)
        return [*found.started, *(self.cancel(each) for each in found.stopping)]

    def cancel(self, task_id: TaskId) -> NewTask:
        """The command for one task."""
        self._commands += 1
        row = self.stages.of_task(task_id)
        assert row is not None, "a stage"
        body = msgspec.json.encode({"task_id": task_id})
        own = TaskId(f"{task_id[:19]}b001-{self._commands:012x}")
        return NewTask(row.shard_id, own, QUEUE, f"{PREFIX}cancel", body)

    def revived(self, task_id: str) -> None:
        """A dead letter is in the timer table again."""
        row = self.stages.of_task(TaskId(task_id))
        if row is not None and row.state == "dead":
            row.state = STARTED

    def let_go(self, task_ids: Collection[str]) -> None:
        """These tasks will never run."""
        records = self._truth.records
        for task_id in sorted(task_ids):
            if records[task_id].name in NAMES and (command := decode(records[task_id])) is not None:
                stage = self.stages.of_task(command.task_id)
                if stage is not None:
                    self._unsure.add(stage.workflow_id)
            row = self.stages.of_task(TaskId(task_id))
            if row is not None and row.state in OPEN:
                row.state = "cancelled"
                self._truth.orders.dropped.add(row.workflow_id)
                for other in self.stages.of_workflow(row.workflow_id):
                    if other.state == WAITING:
                        other.state = "cancelled"

    def _judge_start(self, task_id: TaskId) -> None:
        truth = self._truth
        row = self.stages.of_task(task_id)
        assert row is not None, "a stage"
        if task_id in truth.records:
            raise Broken(f"S21: {task_id} was started before")
        before = [self.stages.rows[row.workflow_id, each].task_id for each in row.after]
        if before:
            if late := [each for each in before if each not in truth.once_done]:
                raise Broken(f"S21: {task_id} was started, {late[0]} was not done")
            return
        whole = {each.task_id for each in self.stages.of_workflow(row.workflow_id)}
        if not whole & truth.once_failed:
            raise Broken(f"S21: {task_id} was started, and nothing had failed")

    def judge_end(self) -> None:
        """Raises: Broken: E9 or E10."""
        truth = self._truth
        for row in self.stages.rows.values():
            whole = self.stages.of_workflow(row.workflow_id)
            over = row.workflow_id in truth.orders.dropped or any(
                truth.orders.cancels(each.task_id, truth.groups[0]) for each in whole
            )
            if row.workflow_id in self._unsure:
                continue
            if over:
                if row.state == WAITING:
                    raise Broken(f"E10: {row.task_id} waits in a workflow that was cancelled")
            elif row.task_id not in truth.records:
                before = {self.stages.rows[row.workflow_id, each].task_id for each in row.after}
                if before and before <= truth.once_done:
                    raise Broken(f"E9: {row.task_id} was never started")
                if not before and {each.task_id for each in whole} & truth.once_failed:
                    raise Broken(f"E9: {row.task_id} was never started, and another one failed")
            if row.state in (STARTED, STOPPING):
                raise Broken(f"E10: {row.task_id} is {row.state}, and it has ended")
