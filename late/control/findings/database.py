"""Findings about the database: who holds it up, and what it has not answered. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from late.control.findings import workers
from late.control.findings.model import Finding, before, following
from late.control.findings.phrases import age
from late.control.status.locks import LockHolder
from late.control.status.old_transactions import OldTransaction
from late.control.status.snapshot import Snapshot

WAITS_S = 3.0
"""Locks are waited for all the time, and for moments."""
UNANSWERED_S = 5.0
DISK_FULL = ("53100", "SQLITE_FULL")
"""Parts of the errors of PostgreSQL and SQLite on a full disk."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield who holds locks for long, and what follows from that."""
    yield from _write_lock(seen)
    holders = list(_holders(seen))
    yield from holders
    yield from _refused(seen)
    for effect in (*_unanswered(seen), *_unread(seen)):
        yield following(effect, holders[0]) if holders else effect
    yield from _old(seen)


def _session(of: LockHolder | OldTransaction) -> str:
    """Say whose session it is and what it does."""
    who = of.application or "a session"
    who += f" of user {of.user}" if of.user else ""
    return f"{who}, {of.state}" if of.state else who


def _cure(of: LockHolder | OldTransaction) -> tuple[str, str]:
    """Return what helps against a session, and the command."""
    text = (
        " What helps: end its transaction in the program that began it. Else the command ends"
        f" its session, and what it has not committed is rolled back; it takes the role"
        f" {of.user or 'of that session'}, or pg_signal_backend."
    )
    where = shlex.quote(of.database) if of.database else '"$LATE_URL"'
    return text, f"psql {where} -c 'select pg_terminate_backend({of.pid})'"


def _old(seen: Snapshot) -> Iterator[Finding]:
    """Yield transactions that have been open for long, but for those that hold a lock."""
    told = {holder.pid for holder in _lasting(seen)}
    for each in seen.transactions:
        if each.pid in told:
            continue
        cure, command = _cure(each)
        what = f"Process {each.pid} of the database has a transaction open for {age(each.open_s)}"
        text = (
            f"It is {_session(each)}. Until it ends no task that is newer leaves the log, and a"
            f" resize of a lane holds keys back.{cure}"
        )
        yield Finding("warn", what, text, "", command)


def _lasting(seen: Snapshot) -> list[LockHolder]:
    """Return those whose locks are waited for long. Where the tables could not be read this look
    has waited too, even if the server hides for how long others do."""
    return [each for each in seen.holders if seen.partial or each.waits_s >= WAITS_S]


def _holders(seen: Snapshot) -> Iterator[Finding]:
    for holder in _lasting(seen):
        opened = "" if holder.open_s is None else f", its transaction open for {age(holder.open_s)}"
        what = f"Process {holder.pid} of the database holds a lock on {holder.table or 'rows'}"
        text = (
            f"It is {_session(holder)}{opened}. {holder.waiting} sessions of late wait for it"
            + (f", the longest for {age(holder.waits_s)}." if holder.waits_s else ".")
        )
        if holder.behind:
            text += f" They stand behind process {holder.behind}, which waits for it as well."
        cure, command = _cure(holder)
        yield Finding("bad", what, text + cure, "", command)


def _refused(seen: Snapshot) -> Iterator[Finding]:
    """Yield what the database does not take of a worker until somebody mends it."""
    told = [each.report for each in seen.reports if each.fresh and each.report.refusal]
    if not told:
        return
    text = (
        f"{told[0].address}: {told[0].refusal}. What such a shard has run is kept for ten minutes"
        " and recorded as soon as the database takes it; after that, or a restart of the worker, it"
        " runs again. The shard starts nothing. What helps: the right, or the row, that the error"
        " names; all goes on within half a minute then."
    )
    what = f"The database refuses settlements of {len(told)} workers"
    command = "late roles sql" if "permission denied" in told[0].refusal else "late doctor"
    yield Finding("bad", what, text, "workers", command)


def _write_lock(seen: Snapshot) -> Iterator[Finding]:
    """Yield the holder of the write lock of a file, which has no name."""
    if not seen.write_locked or not workers.unheard(seen):
        return
    file = seen.disk.file if seen.disk is not None else "the file of the database"
    text = (
        f"Nobody else can write to {file}: nothing is enqueued or recorded. {workers.UNHEARD}"
        " What helps: end its transaction, or the process. The command lists all that have the"
        " file open, workers too; docs/runbooks/no-workers.md says how to tell them apart."
    )
    command = f"fuser -v {shlex.quote(file)}" if seen.disk is not None else ""
    yield Finding("bad", "A process holds the write lock of the database's file", text, "", command)


def _unread(seen: Snapshot) -> Iterator[Finding]:
    if seen.partial:
        what = "The tables of late are locked" if seen.holders else "The database does not answer"
        text = "Queues, groups and shards are not known now."
        yield Finding("bad", what, text, "", "late doctor")


def _unanswered(seen: Snapshot) -> Iterator[Finding]:
    waits = [
        (max(0.0, (seen.status.now_us - each.report.settling_since_us) / 1e6), each.report)
        for each in seen.reports
        if each.fresh and each.report.settling_since_us is not None
    ]
    long = sorted((each for each in waits if each[0] >= UNANSWERED_S), key=lambda each: -each[0])
    if not long:
        return
    unrecorded = sum(told.unrecorded for _, told in long)
    oldest_s, first = long[0]
    refused = [told for _, told in long if told.settling_error]
    text = f"{first.address} waits for {age(oldest_s)} for the answer."
    what = f"Settlements of {len(long)} workers are not answered"
    if refused:
        what = f"The database refuses the settlements of {len(refused)} workers"
        text = f"{refused[0].address}, for {age(oldest_s)}: {refused[0].settling_error}."
    text += (
        f" {unrecorded} ends of tasks are not recorded: the death of a worker repeats its part of "
        "them, so do not restart it."
    )
    if any(code in told.settling_error for told in refused for code in DISK_FULL):
        text += " What helps: free space on the disk of the database; they are then recorded."
    yield Finding("bad", what, text, "workers", "late doctor", before(seen.status.now_us, oldest_s))
