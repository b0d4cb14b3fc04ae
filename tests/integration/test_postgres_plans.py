"""How PostgreSQL goes about the statements of the tail, settle, prune and the screens: the plans of
tables with many rows are those that are kept in `postgres_plans.json`, on every version.

A kept plan names, for each large table, how it is read, over how many partitions, and how many rows
are touched at most, to a power of ten. `KEEP_PLANS=1` writes the file anew.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

import late
from late.control import Control, Filter
from late.control.sql import log_lookup
from late.control.task_list.model import TaskFilter
from late.errors import KeyConflict
from late.model.ids import new_id
from late.model.task import Cursor, OpenTask, ShardId
from late.outbox import connect
from late.store.postgres import membership
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer, find_binaries
from tests import servers
from tests.conformance.kit import own, worker
from tests.integration.postgres_kit import Producer, enqueue_many, producer

KEPT = Path(__file__).with_name("postgres_plans.json")
PARTITION = re.compile(r"_[0-9]+_[0-9]+|_default")
LARGE = re.compile(r"late_(task|settlement|timer|dead|history|unique)")
SHARDS = 8
SECOND = 1_000_000
SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "log_line_prefix": "",
    "autovacuum": "off",
    "fsync": "off",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A cluster of our own, whose log has the plan of each statement."""
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server(SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def url(server: PostgresServer) -> str:
    made = servers.migrated_database(server.url)
    with producer(made) as connection:
        fill(connection)
    return made


def fill(connection: Producer) -> None:
    """In each shard 5,000 tasks, 1,000 of a journal, 2,000 that are parked, with a unique key
    each, and 2,000 dead."""
    for shard in range(SHARDS):
        for _ in range(5):
            enqueue_many(connection, 1_000, shard=shard)
        ids = [new_id(shard) for _ in range(2_000)]
        for table, time_column in (("timer", "due_at_us"), ("dead", "dead_at_us")):
            connection.execute(
                f"insert into late_{table} (consumer_group, shard_id, task_id, {time_column}, "
                "position, sequence, queue, name, payload, created_at_us, attempts, deaths, reason)"
                " select 'default', %s, i, n * 1000000, n, n, 'q' || n %% 5, 'name', '{}',"
                " n, 1, 0, 'failed' from unnest(%s::uuid[]) with ordinality u (i, n)",
                (shard, ids),
            )
        connection.execute(
            "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch,"
            " owner, cursor, open, usage, settled_at_us) select 'default', %s, n, %s || '-' || n,"
            " 0, 'w', '', '[]', '[]', n from generate_series(1, 1000) n",
            (shard, str(shard)),
        )
        connection.execute(
            "insert into late_unique (unique_key, task_id, digest, created_at_us)"
            " select 'k' || i, i, '', 1 from unnest(%s::uuid[]) i",
            (ids,),
        )
        connection.execute(
            "insert into late_history (consumer_group, task_id, number, at_us, event, worker)"
            " select 'default', i, n, 1, case n when 3 then 'done' else 'retried' end, 'w'"
            " from unnest(%s::uuid[]) i, generate_series(1, 3) n",
            (ids,),
        )
    for table in ("task", "settlement", "timer", "dead", "history", "unique"):
        connection.execute(f"vacuum (analyze) late_{table}")


Reads = dict[tuple[str, str], list[tuple[str, float]]]
"""By table and access: the partition and its rows, for each node of a plan."""


class Plans:
    """The plans of statements, by what was asked; see the module."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.of: dict[str, list[str]] = {}

    def begin(self) -> int:
        return self._log.stat().st_size

    def end(self, name: str, begun: int) -> None:
        time.sleep(0.05)  # what a backend writes as it ends a statement may follow its answer
        with self._log.open() as log:
            log.seek(begun)
            text = log.read()
        found: Reads = {}
        for written in re.findall(r"plan:\n((?:\t.*\n)+)", text):
            plan = json.loads(re.sub(r"^\t", "", written, flags=re.MULTILINE))
            assert plan["Query Text"], plan
            collect(plan["Plan"], found)
        self.of[name] = sorted(
            f"{table}: {access}, {parts(table, reads)}{power(sum(n for _, n in reads))} rows"
            for (table, access), reads in found.items()
        )


def collect(node: Mapping[str, Any], into: Reads) -> None:
    """Add the reads of large tables under a node: the rows of each, partition by partition."""
    for child in node.get("Plans", ()):
        collect(child, into)
    relation, loops = str(node.get("Relation Name", "")), float(node["Actual Loops"])
    if not (found := LARGE.match(relation)) or not loops or "Scan" not in node["Node Type"]:
        return
    index = node.get("Index Name") or "".join(
        str(child.get("Index Name", "")) for child in node.get("Plans", ())
    )
    access = f"{node['Node Type']} {PARTITION.sub('', index)}".strip()
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    into.setdefault((found[0], access), []).append(
        (relation, loops * (node["Actual Rows"] + removed))
    )


def parts(table: str, reads: Sequence[tuple[str, float]]) -> str:
    """How many partitions were read, where there are some."""
    return f"{len({name for name, _ in reads})} partitions, " if table == "late_task" else ""


def power(rows: float) -> int:
    """The power of ten that is not below a number of rows."""
    found = 1
    while found < rows:
        found *= 10
    return found


Ask = Callable[[], Awaitable[object]]


async def of_the_worker(plans: Plans, url: str, connection: Producer) -> None:
    """What a worker sends: the tail, the fetch, the timers, settlements, prune, membership."""
    store = PostgresStore(url)
    await store.open()
    try:
        owners = [await own(store, shard) for shard in range(SHARDS)]
        cursors: dict[ShardId, Cursor] = dict.fromkeys(map(ShardId, range(SHARDS)), Cursor(""))
        records = []
        while pages := [page for page in await store.read(cursors, 1_000) if page.records]:
            for page in pages:
                cursors[page.shard_id] = page.cursor
                records += page.records
        for _ in range(3):  # and to where no transaction of the window is left to read
            for page in await store.read(cursors, 1_000):
                cursors[page.shard_id] = page.cursor
        enqueue_many(connection, 10)
        keys = [OpenTask(each.position, each.task_id) for each in records if each.shard_id == 0]
        asked: dict[str, Ask] = {
            "tail: a page of ten new tasks": lambda: store.read(cursors, 1_000),
            "tail: a page from the beginning": lambda: store.read({ShardId(1): Cursor("")}, 100),
            "fetch: ten open tasks": lambda: store.fetch(ShardId(0), keys[::500]),
            "due: a page of timers": lambda: store.due(
                "default", ShardId(0), until_us=100 * SECOND, limit=100
            ),
            "settle: eight shards": lambda: store.settle([each.next() for each in owners]),
            "heartbeat": lambda: store.heartbeat(worker(), 60),
            "acquire": lambda: store.acquire("w1", [("default", ShardId(7))]),
            "prune": lambda: store.prune(journal_keep_s=600),
        }
        for name, ask in asked.items():
            begun = plans.begin()
            await ask()
            plans.end(name, begun)
    finally:
        await store.close()


def of_the_producers(plans: Plans, url: str) -> None:
    """What an enqueue with a unique key sends: the last one of each takes it back."""
    app = late.App(url)

    @app.task
    def note(text: str) -> None: ...

    def enqueue(text: str, on_conflict: Literal["existing", "reject", "replace"]) -> None:
        with connect(url) as tx, suppress(KeyConflict):
            note.options(unique_key="key", on_conflict=on_conflict).enqueue(tx, text)

    asked: dict[str, Callable[[], object]] = {
        "enqueue: a free unique key": lambda: enqueue("one", "existing"),
        "enqueue: a unique key that another body has": lambda: enqueue("another", "reject"),
        "enqueue: a unique key that is replaced": lambda: enqueue("one more", "replace"),
    }
    for name, ask in asked.items():
        begun = plans.begin()
        ask()
        plans.end(name, begun)


def of_the_screens(plans: Plans, url: str) -> None:
    """What the control plane sends."""
    with Control(url) as control:
        control.check()
        [letter] = control.dead_letters.page(limit=1).letters
        asked: dict[str, Callable[[], object]] = {
            "status": control.status.read,
            "dead letters: a page": lambda: control.dead_letters.page(limit=100),
            "dead letters of a queue: a page": lambda: control.dead_letters.page(
                Filter(queue="q1"), limit=100
            ),
            "tasks logged": lambda: control.tasks.find("logged", limit=100),
            "tasks logged of a queue": lambda: control.tasks.find("logged", TaskFilter(queue="q")),
            "tasks open": lambda: control.tasks.find("open", limit=100),
            "tasks running": lambda: control.tasks.find("running", limit=100),
            "tasks parked": lambda: control.tasks.find("parked", limit=100),
            "tasks parked of a queue": lambda: control.tasks.find(
                "parked", TaskFilter(queue="q1", since_us=5 * SECOND), limit=100
            ),
            "tasks dead": lambda: control.tasks.find("dead", limit=100),
            "tasks done": lambda: control.tasks.find("done", limit=100),
            "tasks to cancel": lambda: control.tasks.cancel_all(
                "parked", TaskFilter(queue="q1"), dry_run=True
            ),
            "usage": lambda: control.status.usage_since(1, {}),
            "one task": lambda: control.tasks.show(letter.task_id),
            "owners": control.status.owners,
        }
        for name, ask in asked.items():
            begun = plans.begin()
            ask()
            plans.end(name, begun)


async def test_plans_are_those_that_are_kept(
    server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "SHARDS_S", 0.0)
    # How often the log is read for one task must depend neither on how fast its rows were made,
    # nor on the shards of the producers' tasks, which are random: they come last.
    monkeypatch.setattr(log_lookup, "NEAR_US", log_lookup.NEAR_US[-1:])
    plans = Plans(server.log)
    with producer(url) as connection:
        await of_the_worker(plans, url, connection)
    of_the_screens(plans, url)
    of_the_producers(plans, url)
    if os.environ.get("KEEP_PLANS"):
        KEPT.write_text(json.dumps(plans.of, indent=2) + "\n")
    assert plans.of == json.loads(KEPT.read_text())
