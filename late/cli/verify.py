"""`late verify`: check where every task is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from late.cli import options, output

if TYPE_CHECKING:
    from late.control.verify.verify import Verified


def verify(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    group: options.Group = None,
    shard: Annotated[int | None, typer.Option(help="Only this shard.", min=0, max=4095)] = None,
    as_of: options.AsOf = None,
    json: options.Json = False,
) -> None:
    """Check that every task is in exactly one place: waiting, open, parked, dead or settled.

    Reads everything at one moment, beside running workers as well, and changes nothing. Names each
    task that breaks the rule, and what to do. Exit code 1 if there is one.

    The replica of LATE_READ_URL is read while it is near enough: a line says by which the answer
    is, and how far behind. On Spanner everything is read at one moment, LATE_READ_LAG_S ago.

    --as-of: as it was at a past moment. Spanner reads the tables of then; elsewhere the journal of
    then is judged, and the tasks are not.
    """
    with options.control_of(url, url_option) as control:
        where, told = control.url, ""
        if as_of is None and control.store != "sqlite":
            found, told = options.near_read(
                control, lambda near: near.verify(group=group, shard_id=shard)
            )
        else:
            found = control.verify(group=group, shard_id=shard, as_of=as_of)
    if told:
        output.note(told)
    if json:
        problems = [
            {"kind": p.kind, "group": p.group, "shard_id": p.shard_id, "task_id": p.task_id,
             "what": p.what, "remedy": p.remedy}
            for p in found.problems
        ]  # fmt: skip
        output.as_known_json(msgspec.structs.replace(found, problems=problems))
    else:
        _tables(found, where)
    if not found.ok:
        raise typer.Exit(1)


def _tables(found: Verified, where: str) -> None:
    output.note(f"{where}  at {output.moment(found.at_us)}")
    names = ("waiting", "parked", "dead", "settled")
    hide = output.hidden(found.as_of, {"totals.log": "in log"} | {f"totals.{n}": n for n in names})
    columns = ("waiting", "open", "parked", "dead", "settled")
    rows: list[tuple[object, ...]] = [
        (each.group, each.shard_id, f"{each.totals.log:,}",
         *(f"{getattr(each.totals, name):,}" for name in columns))
        for each in found.ledgers
    ]  # fmt: skip
    if len(rows) > 1:
        total = found.totals
        rows.append(("all", "", f"{total.log:,}",
                     *(f"{getattr(total, name):,}" for name in columns)))  # fmt: skip
    output.table(
        "Tasks", ("group", "shard>", "in log>", *(f"{c}>" for c in columns)), rows, hide=hide
    )
    output.not_known(found.as_of)
    for text in found.notes:
        output.note(f"note: {text}")
    if found.ok:
        typer.echo("nothing broken")
        return
    output.table(
        "Problems",
        ("group", "shard>", "task", "kind", "what", "what to do"),
        [
            (p.group, p.shard_id, p.task_id or "(journal)", p.kind, p.what, p.remedy)
            for p in found.problems
        ],
    )
    more = found.problems_total - len(found.problems)
    if more:
        typer.echo(f"… and {more:,} more")
    typer.echo(f"{found.problems_total:,} problem{'s' if found.problems_total > 1 else ''}")
