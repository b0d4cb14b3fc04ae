"""The keys of subjects in the database: made and read in a producer's transaction, read by workers.

A producer keeps no key. A key that its transaction has made is rolled back with it, and a task
under a key that was kept from there could never be read. So an enqueue with a subject reads the
key: one statement more, and two at the first use. Two transactions that use a subject for the first
time wait for each other, as for a unique key: the first one wins, the other one reads its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from late.errors import SubjectDropped, TransactionAborted
from late.outbox.base import Steps
from late.outbox.idle_connections import IdleConnections
from late.outbox.statements import Dialect
from late.payload.subject_keys import SubjectKeyNeeded, SubjectKeys

AT_ONCE = 50
"""The subjects of one statement: Spanner's driver refuses longer texts."""


def keys_of(
    ring: SubjectKeys, subjects: Sequence[str], dialect: Dialect
) -> Steps[dict[str, bytes]]:
    """Return the key of each subject; make those that do not exist.

    Args:
        subjects: ascending, so that two transactions with the same subjects cannot deadlock.

    Raises:
        SubjectDropped: the key of one was dropped. Others may have been made.
        DecodeError: the ring does not open a key.
        TransactionAborted: a key that another transaction has made cannot be seen here.
    """
    found: dict[str, str | None] = {}
    if not dialect.writes_first:
        found = yield from read(dialect, subjects)
    missing = [each for each in subjects if each not in found]
    if missing:
        for start in range(0, len(missing), AT_ONCE):
            part = missing[start : start + AT_ONCE]
            values: dict[str, Any] = {f"s{n}": each for n, each in enumerate(part)}
            values |= {f"w{n}": ring.make(each) for n, each in enumerate(part)}
            rows = [
                f"select {{s{n}}}, {{w{n}}}, {{now}}{{row}} where true" for n in range(len(part))
            ]
            yield dialect.bind(
                "{insert} into late_subject_key (subject, wrapped, created_at_us) "
                f"{' union all '.join(rows)}{{ignore}}",
                **values,
            )
        found |= yield from read(dialect, missing)
    keys: dict[str, bytes] = {}
    for each in subjects:
        if each not in found:
            raise TransactionAborted("another transaction has just made the key of the subject")
        text = found[each]
        if text is None:
            raise SubjectDropped(f"the key of subject {each} is gone: use another name") from None
        keys[each] = ring.unwrap(each, text)
    return keys


def read(dialect: Dialect, subjects: Sequence[str]) -> Steps[dict[str, str | None]]:
    """Read the wrapped keys of subjects. None stands for a key that was dropped."""
    found: dict[str, str | None] = {}
    for start in range(0, len(subjects), AT_ONCE):
        part = subjects[start : start + AT_ONCE]
        marks = ", ".join(f"{{s{n}}}" for n in range(len(part)))
        values: dict[str, Any] = {f"s{n}": each for n, each in enumerate(part)}
        answer = yield dialect.bind(
            f"select subject, wrapped from late_subject_key where subject in ({marks})",
            fetch=True,
            **values,
        )
        found |= {str(subject): wrapped for subject, wrapped in answer.rows}
    return found


def load(url: str, needed: SubjectKeyNeeded, idle: IdleConnections | None = None) -> None:
    """Read the key that an opening has asked for from the database at `url`. It blocks.

    Raises: errors of the driver.
    """
    needed.keys.load(needed.subject, partial(_fetch, url, idle))


def _fetch(
    url: str, idle: IdleConnections | None, subjects: Sequence[str]
) -> Mapping[str, str | None]:
    from late.outbox.connections import read as read_in

    return read_in(url, lambda into: read(into.dialect, subjects), idle)
