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

A worker may serve some **lanes** only. If one in the group does, and all know of lanes
(`placement.LANES`), the shards of each lane are placed among the workers that serve it: those that
name it and those that name none. A lane that nobody serves has no owner. A worker that holds a
shard of a lane that it does not serve releases it, also if nobody takes it.

Two workers with the same view never want the same shard, because placement names one of them.
With different views they may; then the store grants it to one, and the other is told so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import NamedTuple

import msgspec

from late.model.lanes import Lane, Layout
from late.model.task import ShardId
from late.store.base import Membership
from late.tailer import placement
from late.tailer.standby import places

Key = tuple[str, ShardId]
"""(consumer group, shard): the unit of ownership."""
NO_LANES = Layout()


class Node(NamedTuple):
    """A worker that may own shards of a group."""

    place: str
    """See `standby.py`."""
    worker_id: str
    weight: float
    lanes: tuple[str, ...] = ()
    """Those that it serves; empty: all."""


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
    layout: Layout = NO_LANES,
) -> Plan:
    """Return the steps from what is to what placement says.

    Args:
        me: this worker's id. A worker that is not in the membership has announced its leave, or
            has been silent for too long: it plans nothing.
        mine: what this worker holds in memory.
        unsteady: live peers that come and go (`membership.Roster`): nothing is released to them.
        layout: the lanes that this worker knows. Where they count and it knows none, it plans
            nothing.
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
        nodes, number = _nodes(membership, group)
        by_lanes = any(node.lanes for node in nodes)
        if by_lanes and not layout.lanes:
            continue
        owners = lasting = _placed(group, membership.shards, nodes, number, layout)
        if unsteady:
            others = _nodes(membership, group, unsteady)
            lasting = _placed(group, membership.shards, *others, layout)
        leaving = _foreign(me, membership, group, mine, layout) if by_lanes else set()
        for shard_id, owner in owners.items():
            key, holder = (group, shard_id), holders.get((group, shard_id))
            if key in mine:
                if me not in (owner, lasting.get(shard_id)) and owner not in unsteady:
                    leaving.add(key)
            elif owner == me:
                (awaited if holder in live and holder != me else acquire).append(key)
        release += sorted(leaving)
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


def lowest_shard(membership: Membership, group: str, layout: Layout = NO_LANES) -> ShardId | None:
    """Return the lowest shard of the fleet; where lanes count in the group, the lowest one that has
    an owner there by placement: nobody may serve the lanes below."""
    nodes, number = _nodes(membership, group)
    if not any(node.lanes for node in nodes):
        return min(membership.shards, default=None)
    return next(iter(_placed(group, membership.shards, nodes, number, layout)), None)


def has_heirs(
    me: str, membership: Membership, mine: Collection[Key] = (), layout: Layout = NO_LANES
) -> bool:
    """Return whether another worker could own what `me` holds: one that serves a group of its own,
    and the lane of a shard of `mine` if the others go by lanes."""
    groups = next((w.groups for w in membership.workers if w.worker_id == me), ())
    for group in groups:
        others, _ = _nodes(membership, group, {me})
        if others and not any(node.lanes for node in others):
            return True
        lanes = {layout.lane_of(shard_id) for of, shard_id in mine if of == group}
        if any(lanes.intersection(node.lanes or lanes) for node in others):
            return True
    return False


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
    """Return those that may own shards of the group, ascending, and the number of the placement
    that they have in common. Below `LANES` none of them names a lane."""
    found, number = places((w for w in membership.workers if w.worker_id not in without), group)
    nodes = (
        Node(
            place,
            each.worker_id,
            each.capacity,
            placement.lanes_of(each.version) if number >= placement.LANES else (),
        )
        for place, each in found.items()
    )
    return tuple(sorted(nodes)), number


def _foreign(
    me: str, membership: Membership, group: str, mine: AbstractSet[Key], layout: Layout
) -> set[Key]:
    """Return what `me` holds of a group in lanes that it does not serve."""
    version = next(w.version for w in membership.workers if w.worker_id == me)
    lanes = placement.lanes_of(version)
    return {
        (of, shard_id)
        for of, shard_id in mine
        if lanes and of == group and layout.lane_of(shard_id) not in lanes
    }


def _placed(
    group: str, shards: tuple[ShardId, ...], nodes: tuple[Node, ...], number: int, layout: Layout
) -> Mapping[ShardId, str]:
    lanes = layout.lanes if any(node.lanes for node in nodes) else ()
    return _owners(group, shards, nodes, number, lanes)


@lru_cache(maxsize=32)
def _owners(
    group: str,
    shards: tuple[ShardId, ...],
    nodes: tuple[Node, ...],
    number: int,
    lanes: tuple[Lane, ...],
) -> Mapping[ShardId, str]:
    """Return shard -> owner by placement, ascending. Kept, because the fleet seldom changes and a
    thousand shards on a hundred workers cost some 15 ms of the event loop.

    Args:
        lanes: those that are known, if they count. A shard whose lane nobody serves is left out.
    """
    if not lanes:
        return _share(group, shards, nodes, number)
    parts: dict[str, list[ShardId]] = {}
    layout = Layout(lanes)
    for shard_id in shards:
        parts.setdefault(layout.lane_of(shard_id), []).append(shard_id)
    found: dict[ShardId, str] = {}
    for lane, part in parts.items():
        serving = [node for node in nodes if not node.lanes or lane in node.lanes]
        found |= _share(group, part, serving, number)
    return dict(sorted(found.items()))


def _share(
    group: str, shards: Collection[ShardId], nodes: Collection[Node], number: int
) -> dict[ShardId, str]:
    if not nodes:
        return {}
    shard_of = {f"{group}/{shard_id}": shard_id for shard_id in sorted(set(shards))}
    weight_of = {node.place: node.weight for node in nodes}
    place_of = placement.owners(shard_of, weight_of, number)
    worker_in = {node.place: node.worker_id for node in nodes}
    return {shard_id: worker_in[place_of[key]] for key, shard_id in shard_of.items()}
