"""The CockroachDB store's passes against a model of a database with commit timestamps.

The model is as unkind as the real one may be. A transaction commits at the *lowest* timestamp
that the reads so far allow, however long it was open; ids are of any age; gateways' clocks are
apart; rows are written anew and get a new timestamp; the worker dies at any moment and its
successor has the last settlement only. What must hold, whatever happens in whatever order:

- nothing appears below a cursor that anybody holds (T1);
- only what was committed is ever handed out (T2), and a cursor covers ever more (T4);
- in the end every task was handed out and is settled, and unless the worker died or a row was
  written anew, each exactly once.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from late.model.task import Cursor, OpenTask, Record, ShardId
from late.store.cockroach.cursor import LAG_US, SWEEP_US, CockroachWindow, first_id, parse
from late.store.cockroach.tail import RowsRead, page_of, values_of

T0 = 1_800_000_000_000_000
SHARD = ShardId(3)
LIMIT = 3
OFFSET_US = 250_000
"""How far a gateway's clock may be from the true time."""


class Database:
    """One shard of the log: versions with timestamps in nanoseconds, and the timestamp cache."""

    def __init__(self) -> None:
        self.now_us = T0
        self.versions: dict[str, list[tuple[int, bool]]] = {}
        """Of each id, ascending: (timestamp, whether the row is there)."""
        self.reads: list[tuple[str, str, int]] = []
        """(first id, last id, timestamp): no write in that range commits at or below it."""
        self.watched: list[CockroachWindow] = []
        """Cursors that somebody holds."""

    def commit(self, task_id: str, begun_ns: int, *, present: bool = True) -> int:
        stamps = [at for low, high, at in self.reads if low <= task_id <= high]
        last = self.versions.setdefault(task_id, [])
        stamp = max([begun_ns, *(at + 1 for at in stamps), *(at + 1 for at, _ in last)])
        if present:
            moment = -(-stamp // 1_000)
            for window in self.watched:
                assert not window.covers(moment, task_id), "a commit below a cursor"
        last.append((stamp, present))
        return stamp

    def scan(self, window: CockroachWindow, at_us: int) -> list[Any]:
        """What `cockroach_sql.PAGE` finds in a transaction at `at_us`."""
        given = values_of(SHARD, window, LIMIT)
        found: list[Any] = []
        for task_id in sorted(self.versions):
            if task_id < given["first"] or task_id <= given["key"]:
                continue
            past = [version for version in self.versions[task_id] if version[0] <= at_us * 1_000]
            if not past or not past[-1][1]:
                continue
            stamp = past[-1][0]
            if not int(given["swept"]) < stamp <= int(given["until"]):
                continue
            if stamp > int(given["seen"]) or task_id < given["recent"]:
                found.append((stamp, task_id, "q", "n", b"", None, None, 0))
                if len(found) == LIMIT:
                    break
        last = found[-1][1] if len(found) == LIMIT else "g"
        self.reads.append((max(given["first"], given["key"]), last, at_us * 1_000))
        return found


class Worker:
    """What a core does with pages: all of it in order, settled in prefixes."""

    def __init__(self, cursor: Cursor, opened: tuple[OpenTask, ...]) -> None:
        self.cursor = cursor
        self.known: dict[str, bool] = {task.task_id: True for task in opened}
        """Read and not settled: whether the cursor of the checkpoint covers it."""
        self.queue: list[tuple[Record, str]] = []
        """Read and not covered, in order, with the mark of the window."""
        self.handed = RowsRead()


class Tailing(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.database = Database()
        self.open: dict[str, int] = {}
        self.made = 0
        self.committed: set[str] = set()
        self.handled: dict[str, int] = {}
        self.checkpoint: tuple[Cursor, tuple[OpenTask, ...]] = (Cursor(""), ())
        self.worker = Worker(*self.checkpoint)
        self.repeats_allowed = False

    # --- producers ---

    @rule(age_us=st.sampled_from([0, 1_000, 59_000_000, 61_000_000, 600_000_000, -5_000_000]))
    def a_transaction_writes(self, age_us: int) -> None:
        self.made += 1
        task_id = first_id(self.database.now_us - age_us)[:-4] + f"{self.made:04x}"
        self.open[task_id] = self.database.now_us * 1_000 + self.made

    @precondition(lambda self: self.open)
    @rule(data=st.data(), rolled_back=st.booleans())
    def it_ends(self, data: st.DataObject, rolled_back: bool) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.open)))
        begun = self.open.pop(task_id)
        if not rolled_back:
            self.database.commit(task_id, begun)
            self.committed.add(task_id)

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def a_row_is_written_anew(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.committed)))
        if self.database.versions[task_id][-1][1]:
            self.database.commit(task_id, self.database.now_us * 1_000)
            self.repeats_allowed = True

    @rule(us=st.sampled_from([1, 900, 15_000, 30_000, 400_000, SWEEP_US, 3 * SWEEP_US]))
    def time_passes(self, us: int) -> None:
        self.database.now_us += us

    # --- the worker ---

    @rule(offset_us=st.integers(-OFFSET_US, OFFSET_US))
    def it_reads(self, offset_us: int) -> None:
        at = self.database.now_us + offset_us - LAG_US
        before = parse(self.worker.cursor)
        window = before.next(SHARD, at)
        if window is None:
            return
        rows = self.database.scan(window, at)
        page = page_of(SHARD, window, rows, LIMIT, at, self.worker.handed)
        after = parse(page.cursor)
        self._page_is_right(before, after, [record.task_id for record in page.records], at)
        self.worker.cursor = page.cursor
        for record in page.records:
            if record.task_id not in self.worker.known:
                self.worker.known[record.task_id] = False
                self.worker.queue.append((record, page.window))
        self._watch()

    def _page_is_right(
        self, before: CockroachWindow, after: CockroachWindow, found: list[str], at: int
    ) -> None:
        assert found == sorted(set(found))
        assert set(found) <= self.committed, "not committed"
        for task_id, versions in self.database.versions.items():
            stamp, present = versions[-1]
            moment = -(-stamp // 1_000)
            was, now = before.covers(moment, task_id), after.covers(moment, task_id)
            assert now or not was, "the cursor went back"
            if present and moment <= at:
                assert (now and not was) == (task_id in found), "not what the cursor says"

    @rule(covered=st.integers(0, 6), data=st.data())
    def it_settles(self, covered: int, data: st.DataObject) -> None:
        """The checkpoint goes on by some records; of those it covers, some have ended."""
        worker = self.worker
        taken, worker.queue = worker.queue[:covered], worker.queue[covered:]
        for record, _ in taken:
            worker.known[record.task_id] = True
        if worker.queue or not taken:
            edge = taken[-1] if taken else None
            cursor = self.checkpoint[0]
            if edge is not None:
                cursor = Cursor(f"{edge[1]}@{edge[0].position},{edge[0].task_id}")
        else:
            cursor = worker.cursor
        inside = sorted(task_id for task_id, is_covered in worker.known.items() if is_covered)
        ended = data.draw(st.sets(st.sampled_from(inside))) if inside else set()
        self._settle(cursor, ended)

    def _settle(self, cursor: Cursor, ended: set[str]) -> None:
        worker = self.worker
        for task_id in ended:
            self.handled[task_id] = self.handled.get(task_id, 0) + 1
            del worker.known[task_id]
        opened = tuple(OpenTask(0, task_id) for task_id, covered in worker.known.items() if covered)  # type: ignore[arg-type]
        self.checkpoint = (cursor, opened)
        gone = worker.handed.settled(SHARD, cursor, opened)
        for task_id in gone:
            assert task_id in self.handled, "deleted, and nobody has run it"
            self.database.commit(task_id, self.database.now_us * 1_000, present=False)
        worker.handed.remove(SHARD, gone)
        self._watch()

    @rule()
    def it_dies(self) -> None:
        self.repeats_allowed = True
        self.worker = Worker(*self.checkpoint)
        for task in self.checkpoint[1]:
            stamp, present = self.database.versions[task.task_id][-1]
            if present:
                self.worker.handed.add(SHARD, task.task_id, -(-stamp // 1_000))
            else:
                # Written anew and read again just before it was deleted: it has been run.
                assert task.task_id in self.handled, "an open task was deleted"
                del self.worker.known[task.task_id]
        self._watch()

    def _watch(self) -> None:
        self.database.watched = [parse(self.worker.cursor), parse(self.checkpoint[0])]

    # --- the end ---

    @invariant()
    def nothing_rolled_back_was_run(self) -> None:
        assert set(getattr(self, "handled", ())) <= getattr(self, "committed", set())

    def teardown(self) -> None:
        if not hasattr(self, "database"):
            return
        for task_id, begun in self.open.items():
            self.database.commit(task_id, begun)
            self.committed.add(task_id)
        for _ in range(len(self.committed) + 8):
            self.database.now_us += 2 * SWEEP_US
            self.it_reads(0)
        self.worker.queue.clear()
        for task_id in self.worker.known:
            self.worker.known[task_id] = True
        self._settle(self.worker.cursor, set(self.worker.known))
        assert set(self.handled) == self.committed, "lost"
        if not self.repeats_allowed:
            assert set(self.handled.values()) <= {1}, "repeated"


Tailing.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTailing = Tailing.TestCase
