"""`late status`: queues, shards, groups and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import group, options, output
from late.errors import ConfigError, LateError
from late.model.lanes import DEFAULT_LANE
from late.tailer.placement import lanes_of, without_lanes

if TYPE_CHECKING:
    from late.control import Control
    from late.control.views import (
        Owners,
        OwnerView,
        ShardStatus,
        Status,
        WorkerStatus,
    )


def status(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    limit: Annotated[
        int, typer.Option(help="Where each count of one shard stops and says `>=`.", min=1)
    ] = 10_000,
    owners: Annotated[
        bool, typer.Option("--owners", help="Each shard's owner, its former ones, and refusals.")
    ] = False,
    as_of: options.AsOf = None,
    json: options.Json = False,
) -> None:
    """Show queues (depth, oldest age, in flight, parked, dead), shards, owners and workers.

    depth: in the log and not started. in flight: started, or due within moments. parked: delays,
    retries, tasks held by their ordering key. The four counts do not overlap.

    --owners: who owns each shard since when under which epoch, and who did before, by the journal;
    fenced: settlements of former owners that were refused; late: results that came after the shard
    had gone.

    --as-of: as it was at a past moment, as far as the journal's detail or the versions of the
    database reach. What nothing tells any more is left out and named.
    """
    if owners:
        if queue is not None:
            raise ConfigError("--owners is about shards: leave --queue out")
        if as_of is not None:
            raise ConfigError("--owners lists all former owners: leave --as-of out")
        with options.control_of(url, url_option) as control:
            terms = control.status.owners(limit=limit)
        if json:
            output.as_json(terms)
        else:
            _owners(terms)
        return
    with options.watching(url, url_option) as control:
        found = control.status.read(queue=queue, limit=limit, as_of=as_of)
        where = control.url
        replica = "" if json or as_of else _replica(control)
    if json:
        output.as_known_json(found)
    else:
        _tables(found, where)
    if replica:
        output.note(replica)


def _replica(control: Control) -> str:
    """Say how near the replica of LATE_READ_URL is; nothing without one."""
    try:
        found = options.freshness(control)
    except LateError as error:
        return str(error)
    return f"looks of the page are answered {found} ({found.where})" if found else ""


_QUEUES = {
    "queues.oldest_age_s": "oldest",
    "queues.in_flight": "in flight",
    "queues.parked": "parked",
    "queues.dead": "dead",
}
_GROUPS = {
    "groups.state": "state",
    "groups.workers": "workers",
    "groups.owned": "shards",
    "groups.lag_s": "lag",
    "groups.stale_s": "stale",
    "groups.lagging": "alarm",
}
_SHARDS = {"shards.lag_s": "lag age"}
"""Columns by their fields, which may not be known of a past moment."""


def _tables(found: Status, where: str) -> None:
    as_of = found.as_of
    output.note(
        f"{where}  schema {found.schema_version}  deployment {found.deployment}  "
        f"at {output.moment(found.now_us)}"
    )
    output.table(
        "Queues",
        ("group", "queue", "depth>", "oldest>", "in flight>", "parked>", "dead>"),
        [
            (q.group, q.queue, q.depth, output.age(q.oldest_age_s), q.in_flight, q.parked, q.dead)
            for q in found.queues
        ],
        hide=output.hidden(as_of, _QUEUES),
    )
    _judged(found)
    if found.unhandled:
        output.table(
            "No live worker can run",
            ("group", "queue", "task", "tasks>", "since>", "workers with a handler>"),
            [
                (
                    *(u.group, u.queue, u.task, u.waiting, output.age(u.since_s)),
                    "not known" if u.handlers is None else u.handlers,
                )
                for u in found.unhandled
            ],
        )
    group.table(found.groups, output.hidden(as_of, _GROUPS))
    group.replays(found.groups)
    _shards(found)
    output.not_known(as_of)
    if as_of and as_of.source == "journal":
        return
    output.table(
        "Workers",
        ("worker", "address", "groups", "shards>", "capacity>", "version", "up>", "expires in>"),
        [
            (
                w.worker_id,
                w.address,
                ", ".join(w.groups) + _lanes(w),
                w.shards,
                w.capacity,
                without_lanes(w.version),
                _ago(found.now_us, w.started_at_us),
                output.age(w.expires_in_s),
            )
            for w in found.workers
        ],
    )


def _shards(found: Status) -> None:
    as_of = found.as_of
    output.table(
        "Shards",
        ("group", "lane", "shard>", "owner", "epoch>", "seq>", "lag>", "lag age>", "in flight>",
         "settled"),
        [
            (
                s.group,
                s.lane,
                f"{s.shard_id} old" if s.old else s.shard_id,
                s.owner if as_of and as_of.source == "journal" else _owner(s),
                s.epoch,
                s.seq,
                s.lag,
                output.age(s.lag_s),
                s.in_flight,
                _ago(found.now_us, s.settled_at_us),
            )
            for s in found.shards
        ],
        hide=output.hidden(as_of, _SHARDS) | _no_lanes(found.shards),
    )  # fmt: skip


def _no_lanes(shards: Sequence[ShardStatus] | Sequence[OwnerView]) -> set[str]:
    """Leave the column of lanes out where there is `default` alone."""
    return set() if any(each.lane != DEFAULT_LANE for each in shards) else {"lane"}


def _lanes(worker: WorkerStatus) -> str:
    lanes = lanes_of(worker.version)
    return f" (lanes {', '.join(lanes)})" if lanes else ""


def _judged(found: Status) -> None:
    """Print what is paused, what limits per key hold back, and the objectives, if there are any."""
    if found.pauses:
        output.table(
            "Paused",
            ("what", "name", "by", "since>"),
            [(p.kind, p.name, p.by or "not known", _ago(found.now_us, p.since_us))
             for p in found.pauses],
        )  # fmt: skip
    if found.limited_keys:
        output.table(
            "Limited by key",
            ("group", "queue", "key", "running>", "at most>", "a second>", "wait in memory>"),
            [(k.group, k.queue, k.key, k.running, k.concurrency, k.rate, k.waiting)
             for k in found.limited_keys],
        )  # fmt: skip
    if found.objectives:
        output.table(
            "Objectives: 99 % of the attempts start in time",
            ("group", "queue", "in time>", "late>", "of>", "budget left>", "burn 5m>", "1h>", "6h>",
             "7d>", "shards>"),
            [
                (
                    *(o.group, o.queue or "all", output.age(o.objective_s), f"{o.late:,}"),
                    *(f"{o.started:,}", f"{o.budget_left:.0%}"),
                    *(f"{o.burn(window):.1f}" for window in ("5m", "1h", "6h", "7d")),
                    f"{o.shards} of {o.shards_all}",
                )
                for o in found.objectives
            ],
        )  # fmt: skip


def _ago(now_us: int, us: int | None) -> str | None:
    return output.age(None if us is None else max(0, now_us - us) / 1_000_000)


def _owners(found: Owners) -> None:
    output.note(
        f"at {output.moment(found.now_us)}  fenced_total {found.fenced_total}  "
        f"late_total {found.late_total}"
    )
    output.table(
        "Owners",
        ("group", "lane", "shard>", "owner", "epoch>", "for>", "fenced>", "late>"),
        [
            (
                s.group,
                s.lane,
                s.shard_id,
                _owner(s),
                s.epoch,
                _ago(found.now_us, s.since_us),
                s.fenced,
                s.late,
            )
            for s in found.shards
        ],
        hide=_no_lanes(found.shards),
    )
    output.table(
        "History",
        ("group", "shard>", "epoch>", "owner", "settlements>", "first", "last"),
        [
            (
                s.group,
                s.shard_id,
                t.epoch,
                t.owner,
                f">= {t.settlements:,}" if t.cut else f"{t.settlements:,}",
                output.moment(t.first_us),
                output.moment(t.last_us),
            )
            for s in found.shards
            for t in s.history
        ],
    )


def _owner(shard: OwnerView | ShardStatus) -> str | None:
    return shard.owner if shard.owner_live or shard.owner is None else f"{shard.owner} (dead)"
