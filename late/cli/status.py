"""`late status` and `late show`: commands that look at tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import group, options, output
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control
    from late.control.views import (
        Owners,
        OwnerView,
        ShardStatus,
        Status,
        StepView,
        TaskInGroup,
        TaskView,
    )
    from late.model.task import AttemptError


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
    if json:
        _as_json(found)
    else:
        _tables(found, where)


def _as_json(found: Status | TaskView) -> None:
    """Print what is known of the moment."""
    from late.control.past.moment import left_out

    output.as_json(left_out(found))


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
    output.table(
        "Shards",
        ("group", "shard>", "owner", "epoch>", "seq>", "lag>", "lag age>", "in flight>", "settled"),
        [
            (
                s.group,
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
        hide=output.hidden(as_of, _SHARDS),
    )
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
                ", ".join(w.groups),
                w.shards,
                w.capacity,
                w.version,
                _ago(found.now_us, w.started_at_us),
                output.age(w.expires_in_s),
            )
            for w in found.workers
        ],
    )


def _ago(now_us: int, us: int | None) -> str | None:
    return output.age(None if us is None else max(0, now_us - us) / 1_000_000)


def _owners(found: Owners) -> None:
    output.note(
        f"at {output.moment(found.now_us)}  fenced_total {found.fenced_total}  "
        f"late_total {found.late_total}"
    )
    output.table(
        "Owners",
        ("group", "shard>", "owner", "epoch>", "for>", "fenced>", "late>"),
        [
            (
                s.group,
                s.shard_id,
                _owner(s),
                s.epoch,
                _ago(found.now_us, s.since_us),
                s.fenced,
                s.late,
            )
            for s in found.shards
        ],
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


def show(
    task_id: options.TaskId,
    url_option: options.Url = None,
    payload: options.Payload = False,
    everywhere: Annotated[
        bool,
        typer.Option("--everywhere", help="Look through its shard's whole log, if need be: slow."),
    ] = False,
    as_of: options.AsOf = None,
    json: options.Json = False,
) -> None:
    """Show all that is known of one task. Exit code 1 if nothing is.

    States: logged (not started), open (started, or due within moments), parked, dead, settled (it
    ended, its row is still there), unknown (settled long ago, rolled back, or never made). A
    suspect may have killed its worker, and runs on trial. Where the history of the task is kept,
    every step of it.

    The row is looked for where the id says: in its shard, within ten minutes of its time. With
    --everywhere it is also found when the producer's clock was wrong, or its transaction long.

    --as-of: as it stood at a past moment, as far as that is known.
    """
    with options.control_of(url_option) as control:
        found = control.tasks.show(task_id, payload=payload, everywhere=everywhere, as_of=as_of)
        runs = {} if json or as_of else _runs(control, task_id)
    known = any(group.state != "unknown" for group in found.groups)
    if json:
        _as_json(found)
    else:
        output.fields(
            [
                ("task", found.task_id),
                ("shard", found.shard_id),
                ("name", found.name),
                ("queue", found.queue),
                ("made", f"{output.moment(found.made_at_us)} by the producer's clock"),
                ("inserted", output.moment(found.created_at_us)),
                ("position", found.position),
                ("options", found.options),
                ("headers", found.headers),
                ("payload", found.payload or _size(found.payload_bytes)),
            ]
        )
        unclear = {each.field for each in found.as_of.not_known} if found.as_of else ()
        for group in found.groups:
            told = f"groups[{group.group}].state" not in unclear
            _group(group, runs.get(group.group), told=told)
        _workflow(found)
        output.not_known(found.as_of)
    if not known:
        if as_of and found.created_at_us is not None:
            if found.as_of and found.as_of.at_us < found.created_at_us:
                output.note("it was not inserted by then")
        elif not everywhere:
            output.note(
                "nothing where its id says; --everywhere looks through its shard's whole log"
            )
        raise typer.Exit(1)


def _runs(control: Control, task_id: str) -> dict[str, str]:
    """Say by group where a task runs, as workers report it: the database has one that runs again as
    parked, until its end is settled."""
    found: dict[str, str] = {}
    for each in control.reports.all():
        told = each.report if each.fresh else None
        for run in () if told is None else (*told.stuck, *told.runs):
            if run.task_id == task_id:
                where = run.where or each.report.address
                words = f"attempt {run.attempt}, since {output.moment(run.since_us)}, on {where}"
                late = "; it is past its time-out" if run in each.report.stuck else ""
                found.setdefault(run.group, words + late)
    return found


def _size(count: int | None) -> str | None:
    return None if count is None else f"{count:,} bytes (--payload shows them)"


def _workflow(found: TaskView) -> None:
    """Print the stages of the task's workflow, each below those that it waits for."""
    if not found.workflow:
        return
    typer.echo("\nworkflow")
    depth: dict[int, int] = {}
    for each in found.workflow:
        depth[each.stage] = 1 + max([depth[before] for before in each.after], default=0)
        words = [f"{each.stage:>4}  {each.state:9}", "  " * depth[each.stage] + each.name]
        if each.on_failure:
            words.append("on failure")
        elif each.after:
            words.append(f"after {', '.join(map(str, each.after))}")
        words.append("(this task)" if each.task_id == found.task_id else each.task_id)
        typer.echo("  ".join(words))


def _group(group: TaskInGroup, running: str | None, *, told: bool = True) -> None:
    typer.echo("")
    output.fields(
        [
            ("group", group.group),
            ("state", group.state if told else None),
            ("running", running),
            ("ended", group.outcome),
            ("reason", group.reason),
            ("due", output.moment(group.due_at_us)),
            ("died", output.moment(group.dead_at_us)),
            ("held by key", group.held_key),
            ("attempts", group.attempts),
            ("deaths", group.deaths or None),
            ("suspect", "a worker died while it ran: it runs on trial" if group.suspect else None),
            ("owner", group.owner),
            ("edited to", group.payload),
        ]
    )
    if group.history:
        steps(group.history)
    else:
        errors(group.errors)


def steps(found: tuple[StepView, ...]) -> None:
    """Print the steps of a task, one line each."""
    for step in found:
        detail = step.detail
        words = [f"  {output.moment(step.at_us)}  {step.event}"]
        if detail.attempt is not None:
            words.append(f"attempt {detail.attempt}")
        if detail.busy_us is not None:
            words.append(f"{detail.busy_us / 1_000:.1f} ms at {output.plain(detail.target)}")
        if detail.until_us is not None:
            words.append(f"until {output.moment(detail.until_us)}")
        words += [output.plain(text) for text in (detail.reason, detail.error) if text]
        typer.echo("  ".join([*words, output.plain(step.worker)]))


def errors(found: tuple[AttemptError, ...]) -> None:
    """Print the attempts' errors, one line each: the last line of a text names the fault."""
    for error in found:
        lines = error.error.strip().splitlines() or [""]
        worker = f"  {output.plain(error.worker)}" if error.worker else ""
        typer.echo(
            f"  attempt {error.attempt}  {output.moment(error.at_us)}{worker}"
            f"  {output.plain(lines[-1])}"
        )
