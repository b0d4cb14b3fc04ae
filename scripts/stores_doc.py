"""Writes `docs/stores.md`: `python scripts/stores_doc.py`.

From each store's `Features`, what the conformance suite found when it was last run with
`--keep-results` (`docs/results/NAME.json`), and the words below for what no number says. A store
without results was not run, and the page says so. A test compares page and sources.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from late.store.base import Features

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "stores.md"
RESULTS = ROOT / "docs" / "results"


class Words(NamedTuple):
    """The words about one store besides its features."""

    title: str
    module: str
    results: str
    """Name of the file of its results."""
    versions: str
    url: str
    cursor: str
    durable: str
    latency: str
    consumed: str
    limits: tuple[str, ...]
    not_shown: str
    """The properties that its runs could not show."""


STORES = (
    Words(
        "SQLite",
        "late.store.sqlite.store",
        "sqlite",
        "3.35 and newer, WAL mode",
        "`sqlite:///file.db`",
        "the last rowid (one writer at a time)",
        "as the file's `synchronous` says; `FULL` is set",
        "polls `PRAGMA data_version`",
        "range deletes",
        (
            "one machine; no network file system; one writer at a time, the producers included",
            "milliseconds: the clock of SQLite before 3.42 has no more",
        ),
        "power loss",
    ),
    Words(
        "PostgreSQL",
        "late.store.postgres.store",
        "postgres",
        "13 and newer, in UTF8; also behind PgBouncer in transaction mode",
        "`postgresql+psycopg://user@host/db`",
        "a whole snapshot; a read returns what this one sees and the last did not",
        "a task is handed out once its commit is flushed; after a fail-over as durable as the "
        "replication is",
        "adaptive polling",
        "partitions are truncated and dropped",
        (
            "no order across transactions, only within one `ordering_key`",
            "behind a PgBouncer below 1.21 that pools transactions your own connections must not "
            "prepare statements: `prepare_threshold=None` with psycopg (those of `late` do not)",
            "never a standby; a restored or cloned copy after `late rebase` only",
        ),
        "fail-over to a standby; other services that speak its protocol",
    ),
    Words(
        "Cloud Spanner",
        "late.store.spanner.store",
        "spanner",
        "GoogleSQL dialect",
        "`spanner+spanner:///projects/P/instances/I/databases/D`",
        "the timestamp of the read",
        "as the service's commit",
        "adaptive polling by one range read; `?staleness_s=` lets the nearest replica answer",
        "deletes of key ranges",
        (
            "no savepoints; DDL outside of transactions",
            "a commit is bounded in mutations and bytes: so is an enqueue",
        ),
        "**the real service: not run.** The emulator has no ties of timestamps, no roles, no "
        "deadlines, no parallel read-write transactions, and loses all when it stops",
    ),
    Words(
        "CockroachDB",
        "late.store.cockroach.store",
        "cockroach",
        "v23.1 and newer, by its documentation",
        "`cockroachdb+psycopg://user@host:26257/db`",
        "two timestamps: up to where the shard was swept, and its recent ids were read",
        "as the cluster's commit",
        "a poll finds ids of the last minute; an older one (a long transaction, a clock behind) "
        "waits 15 to 30 s for the next sweep",
        "deleted in the settlement's transaction",
        (
            "every poll scans the recent rows of a shard, every sweep all of them: a long backlog "
            "or a group that lags makes reading dear",
            "a deleted row is walked over until it is collected: give `late_task` a "
            "`gc.ttlseconds` of a few minutes",
            "a producer whose transaction is open across a poll has its timestamp moved, and may "
            "be told to retry (40001)",
            "clocks up to 500 ms apart: order within an `ordering_key` is as good as they are",
            "a copy within the cluster (`RESTORE DATABASE` under another name) is not refused",
            "two runs of `late migrate` at once: one may fail, changes nothing, and can be "
            "repeated (there is no lock to take)",
        ),
        "**everything: it has never run on a node.** Tested are its arithmetic against a model of "
        "commit timestamps, its statements on a PostgreSQL with a column that stands in for them, "
        "and its retries against forced errors",
    ),
)

SERVERS = """
`make test-servers` runs the suite, the kills, the migrations and the tests of PostgreSQL's own
behaviour on every version (those of standbys and dumps: on the installed one alone), with the plans
of its large reads and a clock that is set; and the suite, the kills and a restart in the middle
behind PgBouncer:

"""

COPIES = """
## Copies

The tasks of a copied database must not run in both. So a database is adopted by the first worker
that opens it, and a copy that it can tell is refused, with its reason, until `late rebase URL`
adopts it: then what was not settled in it runs. `late doctor` says the same (`guards`). A rename is
no copy.

A **physical copy** is a snapshot of the disk or the machine, a standby that was promoted beside its
primary, or a restore to a point in time.

| copy | SQLite | PostgreSQL | Cloud Spanner | CockroachDB |
|---|---|---|---|---|
| restored on another cluster | refused | refused | refused | refused |
| copied or restored beside the original | refused | refused | refused | **runs** |
| dropped, and restored under the same name | refused, or **runs** | refused | **runs** | **runs** |
| a standby | | refused | | |
| a physical copy | **runs** | **runs** | refused | **runs** |

SQLite's file is told by its inode number. `cp` over an existing file keeps that number, and after
`rm` a file system may give it again (ext4 does): such a copy **runs**. So always run `late rebase`
after a [restore](backup.md#restore-on-sqlite).

A file of SQLite that is moved, deleted or replaced **under a running worker** ends that worker,
within a heartbeat, with exit code 1 and a line that says so. Until then no transaction of its
handlers begins in the new file, and an attempt that is refused one is not counted. A `cp` over the
file is not noticed. Producers in other processes have no such guard: one with an open connection
goes on to commit into the old file, and its tasks are lost with that. Stop all before the file
changes: [backup and restore](backup.md).

An earlier state that is restored **into** the open file (`.restore` of sqlite3) ends the worker as
well, within a heartbeat.

A copy that runs cannot be told from its original after a fail-over: it went back, or forked, with
all that is in it. Take care that the original has ended before a worker opens such a copy. After a
restore, tasks that ended later than what was restored run again: [backup and restore](backup.md).
"""

SQLITE = """
## Which SQLite

`python -c "import sqlite3; print(sqlite3.sqlite_version)"` tells the version: it is that of
Python's build, or of the machine. A worker, and `late doctor`, warn of one before 3.51.3: in these,
two connections that write and move the log into the file at the same moment may corrupt it. Take a
Python that brings a newer SQLite, or a newer `libsqlite3`; keep [backups](backup.md), and look at
the file now and then: `sqlite3 shop.db "pragma integrity_check"`.

A reader that stays open (a transaction with a `select`, a cursor of a tool) keeps SQLite from
moving its log into the file: `shop.db-wal` grows with every write until the reader ends, and takes
the disk in the end. End read transactions.
"""

HEAD = """\
# Stores

<!-- Made by scripts/stores_doc.py from the stores' Features and docs/results; a test compares. -->

CockroachDB is **untried**: nobody has run `late` on a node of it. `make test-cockroach URL=...`
runs every suite of the stores on one, and writes what it found into this page.

What every store gives is the contract in `late/store/base.py`, and one suite asks all of them for
it. Here is where they differ, and what of it was run where.

"""


def features_of(words: Words) -> Features:
    found: Features = import_module(words.module).FEATURES
    return found


def results_of(words: Words, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Read the kept results of the last run; None if there was none."""
    path = folder / f"{words.results}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def ran(results: Mapping[str, Any] | None) -> dict[str, str]:
    """The cells that tell of the last run."""
    if results is None:
        return {"ran on": "**not run**", "date": "", "passed": "0", "failed": "", "skipped": ""}
    skipped = "; ".join(f"{count}: {reason}" for reason, count in results["skipped"].items())
    return {
        "ran on": results["ran_on"],
        "date": results["date"],
        "passed": str(results["passed"]),
        "failed": str(results["failed"]),
        "skipped": skipped or "0",
    }


def rows(words: Words) -> dict[str, str]:
    """The cells of one store, by row."""
    features = features_of(words)
    return {
        "state": "**untried**: experimental" if features.experimental else "supported",
        "versions": words.versions,
        "URL": words.url,
        "order of the log": "commits" if features.commit_order else "none across transactions",
        "cursor": words.cursor,
        "`enqueued_at`, from which a delay counts": {
            "commit": "the timestamp of the commit",
            "insert": "the time of the insert",
        }[features.delay_counts_from],
        "step of its clock": f"{features.time_resolution_s * 1_000_000:,.0f} µs",
        "shortest poll": f"{features.poll_min_s * 1_000:,.0f} ms",
        "longest poll, by default": f"{features.poll_max_s:g} s",
        "new tasks are found by": words.latency,
        "durable": words.durable,
        "settlements of several shards": "in one transaction"
        if features.group_commit
        else "in one each",
        "tasks in one enqueue statement": f"{features.batch_size_max:,}",
        "a worker stops before its lease ends by": f"{features.lease_margin_min_s:g} s at least"
        if features.lease_margin_min_s
        else "a tenth of it",
        "consumed rows": words.consumed,
    }


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Columns by title, each with its cells by row."""
    titles = list(columns)
    names = list(columns[titles[0]])
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(columns[t][name] for t in titles)} |" for name in names]
    return "\n".join(lines) + "\n"


def counted(words: Words, folder: Path) -> str:
    """The sentence about the statements of 1,000 tasks; empty where they were not counted."""
    found = (results_of(words, folder) or {}).get("statements")
    if not found:
        return ""
    each = ", ".join(f"{count} {verb}" for verb, count in found.items())
    return f"\n{words.title}: 1,000 tasks were read and settled by {each} statements.\n"


def servers(folder: Path) -> str:
    """The table of the versions of PostgreSQL, and of PgBouncer, as `make test-servers` kept it."""
    path = folder / "servers.json"
    if not path.exists():
        return ""
    lines = ["| server | date | passed | failed | skipped |", "|---" * 5 + "|"]
    for found in json.loads(path.read_text()).values():
        cells = [str(found[key]) for key in ("server", "date", "passed", "failed", "skipped")]
        lines.append(f"| {' | '.join(cells)} |")
    return SERVERS + "\n".join(lines) + "\n"


def page(folder: Path = RESULTS) -> str:
    """The whole document."""
    parts = [HEAD, table({words.title: rows(words) for words in STORES})]
    parts.append("\n## What was run\n\nThe conformance suite, `tests/conformance`, when its ")
    parts.append("results were last kept:\n\n")
    parts.append(table({words.title: ran(results_of(words, folder)) for words in STORES}))
    parts += [counted(words, folder) for words in STORES]
    parts.append(servers(folder))
    parts.append("\nNot shown by these runs:\n\n")
    parts += [f"- {words.title}: {words.not_shown}.\n" for words in STORES]
    parts.append("\n## Limits\n")
    for words in STORES:
        parts.append(f"\n**{words.title}**\n\n")
        parts += [f"- {limit}\n" for limit in words.limits]
    parts.append(COPIES)
    parts.append(SQLITE)
    return "".join(parts)


def main() -> int:
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
