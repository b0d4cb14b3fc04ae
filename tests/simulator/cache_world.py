"""Worlds of a snapshot cache: writers, loads, a reader of the log and readers, in any order.

The database of a world is a list of commits. On some it gives a transaction its position when it
commits, as SQLite and Spanner do, and on others when it begins, as PostgreSQL does: then a lower
position may commit later. Every step of the cache's loop is a step of its own, so that whatever may
happen between two of them does. Each answer is judged against what was true at its moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from late.cache.moment import Moment
from late.cache.versions import Answer, Change, Load, Versions
from late.model.task import TaskId

KEYS = ("a", "b", "c")
STEPS = 250
VALUE_BYTES = 1_000


class Broken(AssertionError):
    """A cache has answered with what was not true."""


@dataclass
class Writer:
    """A transaction that has begun."""

    position: int
    keys: tuple[str, ...]


@dataclass
class Commit:
    """One transaction that has committed."""

    position: int
    task_id: TaskId
    keys: tuple[str, ...]
    value: int
    at_s: float


@dataclass
class Loading:
    """One load; `found` is None until its snapshot is taken."""

    load: Load
    found: tuple[Moment, dict[str, int | None]] | None = None


@dataclass
class World:
    """One life of one cache, from one seed."""

    seed: int
    make: Callable[[int], Versions] = Versions
    answers: int = 0
    together: int = 0
    """Answers of several keys from memory."""
    past: int = 0
    """Values of past moments that were known."""
    commits: list[Commit] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    loads: list[Loading] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.by_begin = self.rng.random() < 0.6
        self.now_s = 1.0
        self.next = 1
        self.over = 0
        """The highest position of a transaction that is over."""
        self.versions = self.make(self.rng.choice((4_000, 9_000, 100_000)))
        self.cursor = Moment(1)
        self.head: tuple[Moment, float] | None = None

    def run(self) -> str | None:
        """Live it; return what was wrong, or None."""
        steps = (
            self.begin, self.commit, self.abort, self.look, self.look, self.read, self.read,
            self.take_snapshot, self.take_snapshot, self.end_load, self.end_load, self.ask,
            self.ask, self.ask, self.ask_past,
        )  # fmt: skip
        self.follow()
        try:
            for _ in range(STEPS):
                self.now_s += self.rng.random()
                self.follow() if self.rng.random() < 0.01 else self.rng.choice(steps)()
                self.judge_memory()
        except Broken as error:
            return f"seed {self.seed}: {error}"
        return None

    # --- the database ----------------------------------------------------------------------------

    def begin(self) -> None:
        locked = {key for writer in self.writers for key in writer.keys}
        free = [key for key in KEYS if key not in locked]
        if free:
            keys = tuple(self.rng.sample(free, min(len(free), self.rng.choice((1, 1, 2)))))
            self.writers.append(Writer(self.take() if self.by_begin else 0, keys))

    def take(self) -> int:
        self.next += 1
        return self.next - 1

    def commit(self) -> None:
        if not self.writers:
            return
        writer = self.writers.pop(self.rng.randrange(len(self.writers)))
        position = writer.position or self.take()
        self.over = max(self.over, position)
        task_id = TaskId(f"change-{position}")
        self.commits.append(
            Commit(position, task_id, writer.keys, self.rng.randrange(10**9), self.now_s)
        )

    def abort(self) -> None:
        if self.writers and self.rng.random() < 0.3:
            writer = self.writers.pop(self.rng.randrange(len(self.writers)))
            self.over = max(self.over, writer.position)

    def moment(self) -> Moment:
        """What a read sees now."""
        high = self.over + 1
        running = [each.position for each in self.writers if 0 < each.position < high]
        return Moment(high, frozenset(running))

    def truth(self, key: str, moment: Moment) -> int | None:
        value = None
        for commit in self.commits:  # in the order of commits
            if moment.sees(commit.position) and key in commit.keys:
                value = commit.value
        return value

    # --- the loop of the cache -------------------------------------------------------------------

    def follow(self) -> None:
        """Begin to read the log, at first or after a lost connection."""
        self.head = None
        self.cursor = self.moment()
        self.versions.follow(self.cursor, self.now_s)

    def look(self) -> None:
        self.head = (self.moment(), self.now_s)

    def read(self) -> None:
        if self.head is None:
            return
        (moment, moment_s), self.head = self.head, None
        before, self.cursor = self.cursor, self.moment()
        changes = [
            Change(each.task_id, each.position, each.keys)
            for each in self.commits
            if self.cursor.sees(each.position) and not before.sees(each.position)
        ]
        self.rng.shuffle(changes)
        self.versions.advance(moment, moment_s, changes)

    def take_snapshot(self) -> None:
        waiting = [each for each in self.loads if each.found is None]
        if waiting:
            loading, moment = self.rng.choice(waiting), self.moment()
            values = {key: self.truth(key, moment) for key in loading.load.keys}
            loading.found = (moment, values)

    def end_load(self) -> None:
        ready = [each for each in self.loads if each.found is not None]
        if not ready:
            return
        loading = self.rng.choice(ready)
        self.loads.remove(loading)
        assert loading.found is not None
        if self.rng.random() < 0.1:
            self.versions.abandon(loading.load)
            return
        moment, values = loading.found
        sized = {key: (value, VALUE_BYTES) for key, value in values.items()}
        answer = self.versions.keep(loading.load, moment, sized)
        self.judge(answer, loading.load.began_s, loading.load.after)

    # --- readers ---------------------------------------------------------------------------------

    def some_keys(self) -> tuple[str, ...]:
        return tuple(self.rng.sample(KEYS, self.rng.choice((1, 1, 2, 2, 3))))

    def committed_ids(self) -> tuple[TaskId, ...]:
        if not self.commits or self.rng.random() < 0.6:
            return ()
        return (self.rng.choice(self.commits[-5:]).task_id,)

    def ask(self) -> None:
        keys, after = self.some_keys(), self.committed_ids()
        oldest_s = self.now_s - self.rng.choice((1.0, 5.0, 30.0))
        answer = self.versions.answer(keys, oldest_s=oldest_s, after=after)
        if answer is not None:
            self.answers += 1
            self.together += len(keys) > 1
            self.judge(answer, oldest_s, frozenset(after))
        elif len(self.loads) < 3:
            self.loads.append(Loading(self.versions.begin(keys, after, self.now_s)))

    def ask_past(self) -> None:
        if not self.moments:
            return
        moment = self.rng.choice(self.moments[-20:])
        for key, value in self.versions.at(KEYS, moment).items():
            self.past += 1
            if value != self.truth(key, moment):
                raise Broken(f"{key} was not {value} at {moment}")

    # --- the judge -------------------------------------------------------------------------------

    def judge(self, answer: Answer, oldest_s: float, after: frozenset[TaskId]) -> None:
        self.moments.append(answer.moment)
        for key, value in answer.values.items():
            if value != self.truth(key, answer.moment):
                raise Broken(f"{key} was not {value} at {answer.moment}")
        for commit in self.commits:
            must_see = commit.at_s < max(oldest_s, answer.moment_s) or commit.task_id in after
            if must_see and not answer.moment.sees(commit.position):
                raise Broken(f"{answer.moment} is before the commit of {commit.position}")

    def judge_memory(self) -> None:
        held = self.versions._keys.values()
        if self.versions.bytes != sum(each.bytes for versions in held for each in versions):
            raise Broken("the bytes are not those of the values")
        if self.versions.bytes > self.versions._bytes_max:
            raise Broken("there are more bytes than allowed")
