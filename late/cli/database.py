"""`late migrate`, `doctor`, `rebase` and `shards`: commands about the database itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.errors import ConfigError, LateError

if TYPE_CHECKING:
    from late.control import Control
    from late.control.views import Check, DrainView


SECRETS = "0013"
NEW_KEY = """0013 made a new key of receipts and peers, in late_secret.
- Stop all workers and `late serve` of the version before: until it ends, each of them still accepts
  the old key, which every reader of late_meta may have seen.
- PostgreSQL: run `late roles sql` again; workers need its right on late_secret.
- Receipts that were given out before are not valid any more: their tasks come again."""


def migrate(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements instead; connects to nothing.")
    ] = False,
    to: Annotated[
        str | None, typer.Option("--to", help="Go back to an older revision, as 0007.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Bring the database to this version's schema. It may run twice, and twice at once.

    On PostgreSQL it waits for locks that others hold, two seconds at a time, so that nobody waits
    behind it for longer; after a minute without them it ends with 1, and nothing is changed.
    """
    from late.schema import migrate as migrations
    from late.schema import rights
    from late.schema.engine import shown
    from late.schema.version import SCHEMA_VERSION

    where = options.url_of(url, url_option)
    if sql and to is not None:
        raise ConfigError("--sql prints the way forward only: leave --to out")
    if sql:
        script = migrations.sql(where)
        output.as_json({"sql": script}) if json else typer.echo(script, nl=False)
        return
    if to is not None:
        undone = migrations.downgrade(where, to)
        done = f"undid {', '.join(undone)}" if undone else f"is at {to}"
        output.line(json, {"undone": undone, "schema_version": to}, f"{shown(where)}: {done}")
        return
    applied = migrations.upgrade(
        where, on_wait=lambda error: output.note(f"{error}; trying again, others go on meanwhile")
    )
    found = SCHEMA_VERSION if applied else migrations.current(where)
    done = f"applied {', '.join(applied)}" if applied else f"up to date at {found}"
    lacking = rights.read(where)
    keys = {"applied": applied, "schema_version": found, "lacking_rights": lacking}
    output.line(json, keys, f"{shown(where)}: {done}")
    if lacking:
        output.note(f"warning: {rights.told(lacking)}")
    if SECRETS in applied and applied[0] != "0001" and not json:
        typer.echo(NEW_KEY)


def doctor(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as faults.")] = False,
    json: options.Json = False,
) -> None:
    """Check connection, versions, schema, guards, clock, leases and journal.

    Exit code 1 if a check failed. A first look may write the database's identity, as the start of
    a worker does; nothing else is changed.
    """
    import logging

    # What a store warns of when it opens is among the checks.
    logging.getLogger("late").addHandler(logging.NullHandler())
    with options.control_of(url, url_option) as control:
        checks = [*control.doctor(), *_replica(control)]
    failed = sum(check.result == "failed" for check in checks)
    warned = sum(check.result == "warning" for check in checks)
    ok = not failed and not (strict and warned)
    if json:
        output.as_json({"ok": ok, "checks": checks})
    else:
        marks = {"ok": "ok", "warning": "WARNING", "failed": "FAILED"}
        for check in checks:
            typer.echo(f"{marks[check.result]:<8} {check.name:<13} {output.plain(check.detail)}")
        typer.echo(f"{len(checks)} checks, {failed} failed, {warned} warnings")
    if not ok:
        raise typer.Exit(1)


def _replica(control: Control) -> Iterator[Check]:
    """Check the replica of LATE_READ_URL, if there is one."""
    from late.control.views import Check

    try:
        found = options.freshness(control)
    except LateError as error:
        yield Check("replica", "warning", str(error))
        return
    if found is not None:
        lag = f"looks of the page are answered {found} (LATE_READ_LAG_S={found.bound_s:g})"
        yield Check("replica", "ok" if found.trouble is None else "warning", lag)


def rebase(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Adopt a restored or cloned copy of a database: its unsettled tasks WILL run here.

    Workers refuse such a copy, because a copy for testing must not send a second mail. Stop every
    worker of this database first, and make sure that the original is gone or shall not run. On
    PostgreSQL it takes the tables' owner.
    """
    import asyncio

    from late.schema.engine import shown

    where = options.url_of(url, url_option)
    if not yes:
        question = f"Run the unsettled tasks of {shown(where)} from now on here?"
        options.asked(question, "a rebase runs the copy's tasks here")

    async def adopted() -> None:
        from late.store import open_store

        store = open_store(where)
        try:
            # Part of the store class and not of the seam: only this command uses it.
            await store.rebase()  # type: ignore[attr-defined]
        finally:
            await store.close()

    asyncio.run(adopted())
    with options.control_of(where) as control:
        control.audit.record("rebase", "database")
    said = f"{shown(where)} is now this deployment's database: start the workers"
    output.line(json, {"rebased": shown(where)}, said)


def shards(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    lane: Annotated[str, typer.Option("--lane", help="The lane.")] = "default",
    set_: Annotated[
        int | None,
        typer.Option(
            "--set", metavar="N", help="Make the lane N shards wide, as its apps' shards= says."
        ),
    ] = None,
    resize: Annotated[
        int | None,
        typer.Option("--resize", metavar="N", help="Wider or narrower, while it works."),
    ] = None,
    create: Annotated[
        int | None,
        typer.Option("--create", metavar="N", help="Make the lane, with N shards."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the lane.")] = False,
    json: options.Json = False,
) -> None:
    """Show the lanes (named ranges of shards), make or remove one, or give one another width.

    After a resize producers follow the database, and keep the order of ordering keys; tasks of a
    key that moves wait until its old shard has ended what it has of it. `--set` is for a lane that
    was never resized: it only tells workers what producers do anyway.
    """
    if sum([remove, *(each is not None for each in (set_, resize, create))]) > 1:
        raise ConfigError("give one of --create, --remove, --set and --resize")
    with options.control_of(url, url_option) as control:
        if create is not None:
            control.lanes.create(lane, create)
        if remove:
            control.lanes.remove(lane)
        if set_ is not None:
            control.lanes.set_shards(lane, set_)
        if resize is not None:
            control.lanes.resize(lane, resize)
        lanes = control.lanes.all()
    if not remove and lane not in (names := [each.name for each in lanes]):
        raise ConfigError(f"no lane {lane[:128]!r}; known: {', '.join(names)}")
    output.listed(
        json,
        {"lanes": lanes},
        "Lanes",
        ("lane", "first shard>", "shards>", "version>"),
        [(found.name, found.first_shard, found.shards, found.version) for found in lanes],
    )
    for found in [] if json else lanes:
        for old in found.draining:
            typer.echo(_drain(found.name, old))


def _drain(name: str, old: DrainView) -> str:
    begun = f"{name}: {old.shards} shards of version {old.version}"
    if old.state == "closing":
        waits = f"{old.transactions} transactions" if old.transactions else "a worker's look"
        return f"{begun} are closing, they wait for {waits}"
    if not old.left:
        return f"{begun} are draining: no group has looked yet"
    groups = ", ".join(f"{left} in group {each}" for each, left in sorted(old.left.items()) if left)
    if not groups:
        return f"{begun} are drained, the next look forgets them"
    return f"{begun} are draining: of them {groups}, with {old.keys} ordering keys"
