"""A shard of pulled queues whose consumers come and go as a test says."""

from __future__ import annotations

import msgspec

from late.model.task import Cursor, Parked, TaskId
from late.scheduler.events_effects import ParkedLoaded
from tests.unit.core_world import SECOND, World

MAIL, POST = "pull:mail", "pull:post"


def world(count: int = 0) -> World:
    """A shard with so many letters in its log, and nobody who asks."""
    made = World()
    made.pools = (MAIL, POST)
    made.take_over(died=False)
    letters(made, count)
    return made


def letters(made: World, count: int, **options: object) -> list[TaskId]:
    return [made.enqueue("letter", queue="mail", **options) for _ in range(count)]


def inherited(*due_s: float) -> World:
    """A shard whose former owner has put all of it off, each until so many seconds from now."""
    made = world()
    give(made, *due_s)
    made.take_over(died=False)
    return made


def give(made: World, *due_s: float, name: str = "letter", queue: str = "mail") -> list[TaskId]:
    """Rows of the timer table whose records are covered."""
    ids = [made.enqueue(name, queue=queue) for _ in due_s]
    for task_id, seconds in zip(ids, due_s, strict=True):
        due_us = made.now_us + round(seconds * SECOND)
        row = Parked(made.record(task_id), due_us, "unfetched")
        made.timers[due_us, task_id] = row
    made.last = msgspec.structs.replace(made.last, cursor=Cursor(str(len(made.log))))
    made.arrived = len(made.log)
    return ids


def look(made: World, *, slots: int = 0) -> None:
    """One pass of the loop, which passes by a core that says it is quiet, and what it asks for."""
    asked = [pool for pool in made.pools if made.asked.get(pool)]
    state = made.core.state
    if made.now_us < state.quiet_until_us and not state.unclaimed.may_have(asked):
        state.now_us = made.now_us
    else:
        made.grant(slots)
    while made.answers:
        made.answer()


def settle(made: World) -> None:
    made.write()
    made.acknowledge()


def park(made: World, seconds: float = 4.0) -> None:
    """Time passes while nobody asks."""
    for _ in range(int(seconds * 4)):
        made.read_page()
        look(made)
        settle(made)
        made.now_us += SECOND // 4


def fetch(made: World, want: int, pool: str = MAIL, passes: int = 12) -> list[str]:
    """What a consumer gets that asks for `want`, while the clock stands still."""
    began = len(made.starts)
    made.asked[pool] = want
    for _ in range(passes):
        look(made)
        made.read_page()
    return [a.record.task_id for a in made.starts[began:]]


def called(made: World) -> tuple[ParkedLoaded, int]:
    """Ask until the table is read for it; that answer, which has not come yet."""
    for _ in range(20):
        made.asked[MAIL] = 1
        made.grant(0)
        for event, epoch in made.answers:
            if isinstance(event, ParkedLoaded) and made.core.state.unclaimed.is_mine(event.request):
                made.answers.clear()
                return event, epoch
        while made.answers:
            made.answer()
    raise AssertionError("it was not read")


def far(made: World) -> list[str]:
    """What is in the timer table beyond what is in memory."""
    loaded = made.core.state.timers.loaded
    return [task_id for key, row in made.timers.items() if key > loaded
            for task_id in [row.record.task_id]]  # fmt: skip
