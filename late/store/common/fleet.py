"""The fleet from rows: workers, leases, shards and groups, in every store alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from late.model.task import ShardId
from late.store.base import LeaseView, Membership, NameEnds, WorkerInfo
from late.store.common.groups import active_of

Row = Any

_names_of = msgspec.json.Decoder(tuple[str, ...]).decode
_ends_of = msgspec.json.Decoder(tuple[NameEnds, ...]).decode


def groups_text(worker: WorkerInfo) -> str:
    """The column `consumer_groups`: JSON list of names."""
    return msgspec.json.encode(worker.groups).decode()


def ends_text(worker: WorkerInfo) -> str | None:
    """The column `ends`: JSON list of `NameEnds`; NULL, as nearly always, when nothing fails."""
    return msgspec.json.encode(worker.ends).decode() if worker.ends else None


def _ends(text: str | None) -> tuple[NameEnds, ...]:
    """Read the column `ends`. What cannot be read (of another version) says nothing: it must not
    fail the heartbeat of the one who reads it."""
    try:
        return _ends_of(text) if text else ()
    except msgspec.MsgspecError:
        return ()


def worker_of(row: Row) -> WorkerInfo:
    """Read a row of a worker, see `membership_of`."""
    worker_id, address, names, capacity, version, ends, _ = row
    return WorkerInfo(worker_id, address, _names_of(names), capacity, version, ends=_ends(ends))


def membership_of(
    now_us: int,
    workers: Iterable[Row],
    leases: Iterable[Row],
    shards: Iterable[int],
    groups: Iterable[str],
    *,
    settings: str | None = None,
    offers: bool | None = None,
) -> Membership:
    """The fleet at one moment.

    Args:
        workers: (worker_id, address, consumer_groups, capacity, version, ends, expires_at_us) of
            those that live, ascending by id.
        leases: (consumer_group, shard_id, owner, epoch), ascending.
        groups: the names of those that may be worked, as `ACTIVE` returns them.
        settings, offers: as in `Membership`.
    """
    rows = list(workers)
    active, shadows = active_of(groups)
    return Membership(
        now_us=now_us,
        workers=tuple(worker_of(row) for row in rows),
        leases=tuple(LeaseView(*row) for row in leases),
        shards=tuple(ShardId(shard_id) for shard_id in sorted(shards)),
        groups=active,
        shadows=shadows,
        expires_at_us={row[0]: row[6] for row in rows},
        settings=settings,
        offers=offers,
    )
