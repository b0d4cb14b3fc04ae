"""The half of the state machine that has no owner: transactions that come and go, and readers."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from late.model.task import NewTask, Record, ShardId
from late.store.base import Page, cursor_within
from tests.conformance.kit import task
from tests.conformance.machine_model import Producer, Reader
from tests.conformance.machine_worlds import Transaction, World

SHARDS = (ShardId(0), ShardId(1))
LIMITS = st.integers(1, 7)
ANY = st.integers(0, 9)
FORKS = st.none() | st.integers(0, 6)
READERS_MAX = 4


class ReadingMachine(RuleBasedStateMachine):
    """Any number of producers and readers on one database."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        world.reset()
        self.producers: list[tuple[Transaction, Producer]] = []
        self.committed: dict[ShardId, dict[str, bytes]] = {shard: {} for shard in SHARDS}
        self.records: dict[str, Record] = {}
        """As they were first read."""
        self.maybe_gone: set[str] = set()
        self.readers = [Reader(shard) for shard in SHARDS]
        self.made = 0

    def teardown(self) -> None:
        for transaction, _ in self.producers:
            transaction.abort()
        self.producers = []
        for reader in (*self.readers, *(Reader(shard) for shard in SHARDS)):
            self.read_on(reader, 3)

    # ------------------------------------------------------------------ producers

    @property
    def quiet(self) -> bool:
        """Whether a worker's write would not wait for a producer."""
        return not (self.world.exclusive and self.producers)

    def pick(self, index: int) -> tuple[Transaction, Producer]:
        return self.producers[index % len(self.producers)]

    @rule(index=ANY, shard=st.sampled_from(SHARDS), count=st.integers(1, 5))
    def insert(self, index: int, shard: ShardId, count: int) -> None:
        """Into a transaction that is open, or one that begins with it."""
        most = 1 if self.world.exclusive else 3
        if index % 4 >= len(self.producers) < most:
            self.producers.append((self.world.begin(), Producer()))
            index = len(self.producers) - 1
        transaction, producer = self.pick(index)
        if not producer.prepared:
            rows = self.rows(shard, count)
            transaction.insert(rows)
            producer.rows += rows

    def rows(self, shard: ShardId, count: int) -> list[NewTask]:
        self.made += 1
        payload = b'{"n":%d}' % self.made
        return [task(shard, payload=payload) for _ in range(count)]

    @precondition(lambda self: self.quiet)
    @rule(shard=st.sampled_from(SHARDS), count=st.integers(1, 9))
    def enqueue(self, shard: ShardId, count: int) -> None:
        """A whole transaction, as most are."""
        transaction = self.world.begin()
        rows = self.rows(shard, count)
        transaction.insert(rows)
        transaction.commit()
        self.now_committed(rows)

    @precondition(lambda self: self.producers and self.world.savepoints)
    @rule(index=ANY, word=st.sampled_from(("save", "roll back", "prepare")))
    def change(self, index: int, word: str) -> None:
        """A savepoint, a rollback to it, or the first half of a commit in two phases."""
        transaction, producer = self.pick(index)
        if producer.prepared:
            return
        if word == "save":
            transaction.savepoint("s")
            producer.mark = len(producer.rows)
        elif word == "prepare" and self.world.prepares:
            transaction.prepare()
            producer.prepared = True
        elif word == "roll back" and producer.mark is not None:
            transaction.rollback_to("s")
            del producer.rows[producer.mark :]

    @precondition(lambda self: self.producers)
    @rule(index=ANY)
    def commit(self, index: int) -> None:
        transaction, producer = self.pick(index)
        transaction.commit()
        self.producers.remove((transaction, producer))
        self.now_committed(producer.rows)

    def now_committed(self, rows: Sequence[NewTask]) -> None:
        for row in rows:
            self.committed[ShardId(row.shard_id)][row.task_id] = row.payload

    @precondition(lambda self: self.producers)
    @rule(index=ANY, crash=st.booleans())
    def abort(self, index: int, crash: bool) -> None:
        transaction, producer = self.pick(index)
        self.producers.remove((transaction, producer))
        transaction.crash() if crash else transaction.abort()

    # ------------------------------------------------------------------ the tail

    def read(self, reader: Reader, limit: int, store: int = 0) -> Page | None:
        """One page, judged."""
        committed = self.committed[reader.shard_id]
        if reader.due is None:
            reader.due = frozenset(committed)
        before = reader.cursor
        pages = self.world.run(
            self.world.stores[store % 2].read({reader.shard_id: reader.cursor}, limit)
        )
        if not pages:  # nothing more in this window, or in this moment
            self.complete(reader)
            if "@" not in before:
                reader.due = None
            return None
        (page,) = pages
        assert page.shard_id == reader.shard_id
        assert len(page.records) <= limit
        keys = [(record.position, record.task_id) for record in page.records]
        assert keys == sorted(set(keys)), "not ascending"
        for record in page.records:
            self.judge(record, reader)
        reader.seen.update(record.task_id for record in page.records)
        reader.cursor = page.cursor
        if not page.more:
            self.complete(reader)
            reader.due = None
        return page

    def judge(self, record: Record, reader: Reader) -> None:
        task_id = record.task_id
        assert record.shard_id == reader.shard_id
        assert task_id in self.committed[reader.shard_id], "T2: not committed"
        assert record.payload == self.committed[reader.shard_id][task_id]
        assert task_id not in reader.seen, "T4: covered before, and shown again"
        assert self.records.setdefault(task_id, record) == record, "a record has changed"

    def complete(self, reader: Reader) -> None:
        missing = (reader.due or frozenset()) - reader.seen - self.maybe_gone
        assert not missing, f"T1: {sorted(missing)} covered and never shown"

    def read_on(self, reader: Reader, limit: int) -> None:
        """To the end: by then everybody has seen everything."""
        wanted = frozenset(self.committed[reader.shard_id])
        while True:
            page = self.read(reader, limit)
            between = reader.due is None or "@" not in reader.cursor
            if wanted <= reader.seen | self.maybe_gone and (page is None or not page.more):
                return
            # A window that was open before may end first; one of now must have shown it all.
            assert page is not None or not between, "T1: no page, and not all of it shown"

    @rule(index=ANY, limit=LIMITS, pages=st.integers(1, 4), fork=FORKS, store=ANY)
    def tail(self, index: int, limit: int, pages: int, fork: int | None, store: int) -> None:
        """Some pages of one reader; perhaps another goes on from within the last of them."""
        if index >= READERS_MAX:
            self.readers.append(Reader(SHARDS[index % len(SHARDS)]))
        reader = self.readers[index % len(self.readers)]
        for _ in range(pages):
            before = reader.copy()
            page = self.read(reader, limit, store)
        if page is not None and fork is not None and page.records:
            last = fork % len(page.records)
            before.due = before.due or frozenset(self.committed[reader.shard_id])
            before.cursor = cursor_within(page.window, page.records[last])
            before.seen.update(record.task_id for record in page.records[: last + 1])
            self.readers.append(before)
        del self.readers[:-READERS_MAX]
