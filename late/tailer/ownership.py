"""Plan which shards to take and which to give up: a pure function of what one worker sees.

States of one shard in one group, seen by worker *me*, where *placement* is the owner by
rendezvous hashing with bounded loads over the live workers of the group:

| lease held by | placement: me | placement: a live peer |
|---|---|---|
| me, in memory too | keep | **release** (keep, if a peer in quarantine is the reason) |
| me, not in memory | **acquire** again | **acquire**, to release it: see `orphans` |
| nobody, or a worker that is not live | **acquire** | nothing: the peer takes it |
| a live peer | wait: it will release, or die | nothing |

A peer in quarantine comes and goes (`membership.Roster`). It is the reason if placement names it,
or names me when it is left out: with bounded loads its return moves shards between others, too.

Of a group that is paused or deleted, nobody serves anything: what is in memory is **released**.

Two workers with the same view never want the same shard, because placement names one of them.
With different views they may; then the store grants it to one, and the other is told so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache

import msgspec

from late.model.task import ShardId
from late.store.base import Membership
from late.tailer import placement
from late.tailer.membership import weights
from late.tailer.standby import places

Key = tuple[str, ShardId]
"""(consumer group, shard): the unit of ownership."""
Node = tuple[str, str, float]
"""(place, worker id, weight): see `standby.py`."""


class Plan(msgspec.Struct, frozen=True):
    """The next steps of a worker. All lists ascend by (group, shard)."""

    acquire: tuple[Key, ...] = ()
    """Mine by placement, and free."""
    release: tuple[Key, ...] = ()
    """In my hands, and a live peer's by placement."""
    awaited: tuple[Key, ...] = ()
    """Mine by placement, and still in the hands of a live peer."""


def plan(
    me: str,
    membership: Membership,
    mine: AbstractSet[Key],
    *,
    unsteady: Collection[str] = (),
) -> Plan:
    """Return the steps from what is to what placement says.

    Args:
        me: this worker's id. A worker that is not in the membership has announced its leave, or
            has been silent for too long: it plans nothing.
        mine: what this worker holds in memory.
        unsteady: live peers that come and go (`membership.Roster`): nothing is released to them.
    """
    groups = next((worker.groups for worker in membership.workers if worker.worker_id == me), None)
    if groups is None:
        return Plan()
    live = {worker.worker_id for worker in membership.workers}
    holders = {(lease.group, lease.shard_id): lease.owner for lease in membership.leases}
    acquire: list[Key] = []
    release: list[Key] = []
    awaited: list[Key] = []
    for group in sorted(set(groups)):
        owners = _owners(group, membership.shards, *_nodes(membership, group))
        lasting = owners
        if unsteady:
            lasting = _owners(group, membership.shards, *_nodes(membership, group, unsteady))
        for shard_id, owner in owners.items():
            key, holder = (group, shard_id), holders.get((group, shard_id))
            if key in mine:
                if me not in (owner, lasting.get(shard_id)) and owner not in unsteady:
                    release.append(key)
            elif owner == me:
                (awaited if holder in live and holder != me else acquire).append(key)
    # A group that nobody works any more: it is paused, or was deleted.
    release += sorted(key for key in mine if key[0] not in groups)
    return Plan(tuple(acquire), tuple(release), tuple(awaited))


def first_holder(membership: Membership) -> str | None:
    """Return the worker that does what one must do for the whole database; None: nobody.

    It has the lowest (group, shard) of all that live workers hold in groups that are no shadows.
    """
    live = {worker.worker_id for worker in membership.workers}
    held = [
        (lease.group, lease.shard_id, lease.owner)
        for lease in membership.leases
        if lease.owner in live and lease.group not in membership.shadows
    ]
    return min(held)[2] if held else None


def has_heirs(me: str, membership: Membership) -> bool:
    """Return whether another worker could own what `me` holds."""
    groups = next((w.groups for w in membership.workers if w.worker_id == me), ())
    return any(weights(membership, group).keys() - {me} for group in groups)


def lost(membership: Membership, mine: Mapping[Key, int]) -> list[Key]:
    """Return the keys of `mine` (key -> epoch held) that were acquired anew since, ascending.

    A view may be older than a grant: only a **higher** epoch than ours proves a takeover. An
    idle owner settles nothing and would otherwise never be fenced. A higher epoch of our own is
    a grant that we have not heard of: what we hold in memory is just as outdated.
    """
    return sorted(
        (lease.group, lease.shard_id)
        for lease in membership.leases
        if lease.epoch > mine.get((lease.group, lease.shard_id), lease.epoch)
    )


def orphans(me: str, membership: Membership, known: Mapping[Key, int]) -> list[Key]:
    """Return the keys that were granted to `me` without `me` having heard of it, ascending.

    The answer to an acquire can get lost. Peers would wait for such a shard for ever, because its
    owner is alive, so the worker that placement names must acquire it again.

    Args:
        known: key -> highest epoch that `me` has ever held or released. A view that is older
            than our own release shows us as the owner too, but under no higher epoch.
    """
    return sorted(
        (lease.group, lease.shard_id)
        for lease in membership.leases
        if lease.owner == me and lease.epoch > known.get((lease.group, lease.shard_id), -1)
    )


def _nodes(
    membership: Membership, group: str, without: Collection[str] = ()
) -> tuple[tuple[Node, ...], int]:
    """Return (place, worker id, weight) of those that may own shards of the group, ascending, and
    the number of the placement that they have in common."""
    found, number = places((w for w in membership.workers if w.worker_id not in without), group)
    nodes = ((place, each.worker_id, each.capacity) for place, each in found.items())
    return tuple(sorted(nodes)), number


@lru_cache(maxsize=32)
def _owners(
    group: str,
    shards: tuple[ShardId, ...],
    nodes: tuple[Node, ...],
    number: int,
) -> Mapping[ShardId, str]:
    """Return shard -> owner by placement, ascending. Kept, because the fleet seldom changes and a
    thousand shards on a hundred workers cost some 15 ms of the event loop."""
    if not nodes:
        return {}
    shard_of = {f"{group}/{shard_id}": shard_id for shard_id in sorted(set(shards))}
    place_of = placement.owners(shard_of, {place: weight for place, _, weight in nodes}, number)
    worker_in = {place: worker for place, worker, _ in nodes}
    return {shard_id: worker_in[place_of[key]] for key, shard_id in shard_of.items()}
