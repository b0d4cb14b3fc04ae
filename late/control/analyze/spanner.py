"""Spanner's own statistics of locks and transactions, of the last ten minutes.

The emulator does not have them. What the rows look like is taken from Google's documentation, and
it has not been run against the service.

Source: https://cloud.google.com/spanner/docs/introspection/lock-statistics and
.../transaction-statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from sqlalchemy import Engine, text

from late.control.analyze.report import Transaction, Wait
from late.errors import StoreError
from late.schema.engine import reading

FOR_S = 600.0
MISSING = (
    "this Spanner has no SPANNER_SYS, as the emulator: the logs alone say what was seen. The "
    "emulator takes one transaction at a time: what is aborted there says nothing of Spanner"
)
_SINCE = "interval_end > timestamp_sub(current_timestamp(), interval 10 minute)"
_LOCKS = text(f"""
select row_range_start_key, lock_wait_seconds, sample_lock_requests
  from spanner_sys.lock_stats_top_minute where {_SINCE}
""")
_TRANSACTIONS = text(f"""
select transaction_tag, commit_attempt_count, commit_abort_count, avg_total_latency_seconds,
       read_columns, write_constructive_columns
  from spanner_sys.txn_stats_top_minute where {_SINCE}
""")
_WRITES = ("Exclusive", "WriterShared")


def look(engine: Engine) -> tuple[list[Wait], list[Transaction]] | None:
    """Read both statistics; None if the server has none."""
    try:
        with reading(engine) as connection:
            locks = connection.execute(_LOCKS).all()
            transactions = connection.execute(_TRANSACTIONS).all()
    except StoreError as error:
        if "spanner_sys" in str(error).lower():
            return None
        raise
    return waits_of(locks), transactions_of(transactions)


def waits_of(rows: Iterable[Sequence[Any]]) -> list[Wait]:
    """Turn rows of the lock statistics into waits. Any column may be null.

    A row has the seconds that all waits for one key took, and a sample of up to 20 requests for it
    (column, mode, tag), of holders and waiters alike. The seconds are shared equally among the
    pairs of tags of which one writes at least; with a single tag it is in its own way.
    """
    found = []
    for key, seconds, sample in rows:
        requests = [tuple(each) for each in sample or ()]
        writes = {
            tag or "untagged" for _, mode, tag in requests if (mode or "").startswith(_WRITES)
        }
        tags = sorted({tag or "untagged" for _, _, tag in requests})
        pairs = [pair for pair in combinations(tags, 2) if writes & set(pair)]
        pairs = pairs or [(tag, tag) for tag in tags] or [("", "")]
        columns = sorted({column for column, _, _ in requests if column})
        place = _shown(key) + (f" [{', '.join(columns)}]" if columns else "")
        found += [
            Wait("server", "waiting", one, two, place, float(seconds or 0.0) / len(pairs))
            for one, two in pairs
        ]
    return found


def transactions_of(rows: Iterable[Sequence[Any]]) -> list[Transaction]:
    """Turn rows of the transaction statistics into one for each tag."""
    by_tag: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        by_tag.setdefault(row[0] or "untagged", []).append(row)
    found = []
    for tag, several in by_tag.items():
        attempts = sum(int(row[1] or 0) for row in several)
        spent_s = sum(float(row[3] or 0.0) * int(row[1] or 0) for row in several)
        columns = {c for row in several for c in (*(row[4] or ()), *(row[5] or ()))}
        found.append(
            Transaction(
                tag,
                attempts,
                sum(int(row[2] or 0) for row in several),
                round(spent_s / attempts, 6) if attempts else 0.0,
                sorted({column.partition(".")[0] for column in columns}),
            )
        )
    return found


def _shown(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key or "")
