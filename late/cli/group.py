"""Commands about consumer groups, and `late wait`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control import Control
    from late.control.groups.comparison import Comparison, RunCounts
    from late.control.views import GroupView, Reset
    from late.model.replay import WindowState

app = typer.Typer(
    help="Consumer groups: each runs every task, at its own pace.", no_args_is_help=True
)

PLACES = "beginning, now, or a time: 2026-05-01T12:00:00Z, or how long ago: 2h"


def place_of(text: str, what: str, control: Control) -> str | int:
    """Read `beginning`, `now`, or a moment (also how long ago) as microseconds.

    Raises:
        ConfigError: none of these, or a moment that has not come.
    """
    if text in ("beginning", "now"):
        return text
    now = control.now()
    moment = options.moment_us(text, what, now, expected=PLACES)
    if moment > now:
        raise ConfigError(
            f"{what} {text[:64]!r} has not come: tasks that are not written cannot be left out"
        )
    return max(0, moment)  # before 1970 nothing was written


@app.command("create")
def create(
    name: options.Name,
    url_option: options.Url = None,
    queues: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Read these queues only. Never changes. Default: all."),
    ] = None,
    start_from: Annotated[
        str | None, typer.Option("--start-from", metavar="PLACE", help=PLACES)
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Skip a task that is older when it would begin, such as 6h."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Create a group. From then on the log keeps each task until this group has settled it."""
    chosen = None if queues is None else [queue.strip() for queue in queues.split(",")]
    with options.watching(url_option) as control:
        start = None if start_from is None else place_of(start_from, "--start-from", control)
        max_age_s = None if max_age is None else options.duration_us(max_age, "--max-age") / 1e6
        found = control.groups.create(name, queues=chosen, start=start, max_age_s=max_age_s)
        _one(found, json)


@app.command("list")
def groups(
    url: options.UrlArgument = None, url_option: options.Url = None, json: options.Json = False
) -> None:
    """Show the consumer groups and how far behind they are.

    idle: no live worker serves it. LAGGING: the oldest task that it has not read is older than ten
    minutes (LATE_LAG_ALARM_S); the log keeps everything from there on.
    """
    with options.watching(url, url_option) as control:
        found = control.groups.all()
    if json:
        output.as_json({"groups": found})
    else:
        table(found)


def table(found: Sequence[GroupView], hide: Collection[str] = ()) -> None:
    """Print one row for each group, without the columns to `hide`."""
    output.table(
        "Consumer groups",
        (
            "group",
            "state",
            "queues",
            "workers>",
            "shards>",
            "unread>",
            "lag>",
            "stale>",
            "alarm",
            "since",
        ),
        [
            (
                g.name,
                _state(g),
                "all" if g.queues is None else ", ".join(g.queues),
                g.workers,
                g.owned,
                g.lag,
                output.age(g.lag_s),
                output.age(g.stale_s),
                "LAGGING" if g.lagging else "",
                output.moment(g.created_at_us),
            )
            for g in found
        ],
        hide=hide,
    )


def _state(found: GroupView) -> str:
    state = "nobody works" if found.state == "idle" and found.lag.n else found.state
    return state if found.shadow_of is None else f"{state}, shadow of {found.shadow_of}"


@app.command("shadow")
def shadow(
    name: options.Name,
    of: Annotated[
        str, typer.Option("--of", metavar="GROUP", help="The real group.", show_default=False)
    ],
    url_option: options.Url = None,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help=PLACES)] = "now",
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Read these queues only. Default: as GROUP.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Begin so many tasks in a second, at most.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="With a time as --from: take tasks at X times their own pace."
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Forget it after that; the log keeps its tasks.")
    ] = "3d",
    json: options.Json = False,
) -> None:
    """Create a shadow: a group that tries code on real tasks, without effects.

    Its workers (late worker MODULE:APP --group NAME) roll back what handlers do in ctx.begin(),
    ctx.once() and ctx.session, and call no target. What a handler does beside that happens:
    ctx.shadow tells it. Compare by late group compare NAME.
    """
    chosen = None if queues is None else [queue.strip() for queue in queues.split(",")]
    keep_s = options.duration_us(keep, "--keep") / 1_000_000
    with options.watching(url_option) as control:
        place = place_of(start, "--from", control)
        found = control.groups.shadow(
            name, of=of, start=place, queues=chosen, rate=rate, speed=speed, keep_s=keep_s
        )
        _one(found, json)


@app.command("compare")
def compare(
    name: options.Name,
    url_option: options.Url = None,
    limit: Annotated[
        int, typer.Option(metavar="N", help="Show so many differences at most.", min=1, max=1_000)
    ] = 50,
    json: options.Json = False,
) -> None:
    """Compare a shadow with the real group: ends, errors and run times, by task name."""
    with options.watching(url_option) as control:
        found = control.groups.compare(name, limit=limit)
    output.as_json(found) if json else _comparison(found)


def _comparison(found: Comparison) -> None:
    rows: list[tuple[object, ...]] = []
    for each in found.tasks:
        ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
        rows.append((each.queue, each.name, found.shadow, *_counts(each.shadow), ratio,
                     each.differ or ""))  # fmt: skip
        rows.append(("", "", found.real, *_counts(each.real), "", ""))
    columns = ("queue", "task", "group", "done>", "dead>", "other>", "retried>", "mean>", "p95>",
               "x>", "differ>")  # fmt: skip
    output.table(f"Shadow {found.shadow} beside {found.real}", columns, rows)
    if found.differences:
        output.table(
            "Tasks that ended otherwise" + (", the first" if found.capped else ""),
            ("task", "name", found.shadow, found.real, "error"),
            [(d.task_id, d.name, d.shadow, d.real, d.error) for d in found.differences],
        )
    else:
        output.line(False, {}, "no task ended otherwise")
    if found.unended.n:
        waits = f"{found.unended} tasks have not ended yet in {found.shadow}"
        output.line(False, {}, f"{waits}: of these only parked ones that failed are compared")
    if found.unread.n:
        output.line(False, {}, f"{found.unread} tasks are not read yet by {found.shadow}")


def _counts(of: RunCounts) -> tuple[object, ...]:
    times = ("" if s is None else f"{s * 1_000:.1f} ms" for s in (of.mean_s, of.p95_s))
    return (of.done, of.dead, of.other, of.failed, *times)


@app.command("show")
def show(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Show one group."""
    with options.watching(url_option) as control:
        _one(control.groups.get(name), json)


@app.command("set")
def set_(
    name: options.Name,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SETTING=VALUE...", help="`default` takes a setting back.", show_default=False
        ),
    ],
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Set what a group promises or skips: `late group set audit objective=1m max_age=6h`."""
    from late.model.group_settings import parse

    changes = parse(words)
    with options.watching(url_option) as control:
        _one(control.groups.change(name, changes), json)


@app.command("pause")
def pause(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Let its workers release its shards, within seconds. What runs may finish; nothing starts."""
    with options.watching(url_option) as control:
        _one(control.groups.pause(name), json)


@app.command("resume")
def resume(name: options.Name, url_option: options.Url = None, json: options.Json = False) -> None:
    """Let its workers take its shards again, within seconds."""
    with options.watching(url_option) as control:
        _one(control.groups.resume(name), json)


@app.command("delete")
def delete(
    name: options.Name,
    url_option: options.Url = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Forget a group with its parked tasks and dead letters. Stop its workers first."""
    if not yes:
        question = (
            f"Forget group {name}: what it has not run will never run in it, and its usage that is"
            " in no lake yet is gone?"
        )
        options.asked(question, f"this forgets group {name}, with what it has not run")
    with options.control_of(url_option) as control:
        control.groups.delete(name)
    output.line(json, {"deleted": name}, f"group {name} is deleted")


@app.command("reset")
def reset(
    name: options.Name,
    to: Annotated[
        str, typer.Option("--from", "--to", metavar="PLACE", help=PLACES, show_default=False)
    ],
    url_option: options.Url = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Begin about so many replayed tasks in a second, in all workers."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Run the tasks of this window again, and go on from where it is."
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="With --until: forget the last replay of a window.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Let a group begin anew: read the log again from a place, or leave out what waits.

    Tasks that are read again run again (`ctx.is_replay`). What the group has started or parked and
    does not read again goes on. Exact by the time of insert, as far back as the log goes.

    With --until it does not begin anew: tasks of that window that have ended run again, at the
    rate, beside the new ones. The command stays until they are put back. Ctrl-C stops the replay
    within seconds, and the same command goes on with it; `late group cancel-replay` ends it.
    """
    if until is not None:
        from late.cli.group_window import replay

        replay(name, to, until, url_option, rate, again=again, dry_run=dry_run, yes=yes, json=json)
        return
    if again:
        raise ConfigError("--again is for a replay of a window: give --until")
    with options.control_of(url_option) as control:
        place = place_of(to, "--from or --to", control)
        if not (dry_run or yes):
            _effects(control.groups.reset(name, place, rate=rate, dry_run=True), place)
            options.asked(f"Reset group {name}?", f"this resets group {name}")
        done = control.groups.reset(name, place, rate=rate, dry_run=dry_run)
    output.as_json(done) if json else _effects(done, place)


@app.command("cancel-replay")
def cancel_replay(
    name: options.Name, url_option: options.Url = None, json: options.Json = False
) -> None:
    """End the replay of a window that is under way, whoever carries it on.

    What it has put back already runs within seconds. `late group show NAME` says how far it is.
    """
    with options.control_of(url_option) as control:
        found = control.groups.cancel_window(name)
    text = f"cancelled: {found.copied:,} tasks are put back, and run as they fall due"
    output.line(json, found, text)


def _effects(found: Reset, place: str | int) -> None:
    from late.control.views import Count

    columns = ("again", "skipped", "unparked", "dead", "kept")
    rows: list[tuple[object, ...]] = [
        (s.shard_id, *(getattr(s, name) for name in columns)) for s in found.shards
    ]
    totals = (sum((getattr(s, n) for s in found.shards), start=Count()) for n in columns)
    rows.append(("all", *totals))
    output.table(
        f"{'Would reset' if found.dry_run else 'Reset'} group {found.group}",
        ("shard>", "read again>", "left out>", "timers gone>", "dead letters gone>", "go on>"),
        rows,
    )
    if place != "now":
        _window(found, place)


def _window(found: Reset, place: str | int) -> None:
    """Print which tasks the group reads from there on, and how long a rate makes that."""
    from late.cli.group_window import EFFECTS_AGAIN, say_kept
    from late.control.views import Count

    if found.queues:
        output.table("It reads", ("queue", "tasks>"), list(found.queues.items()))
        span = f"{output.moment(found.oldest_us)} to {output.moment(found.newest_us)}"
        output.line(False, {}, f"enqueued from {span}")
    say_kept(found.kept_us, place if isinstance(place, int) else found.kept_us or 0)
    total = sum(found.queues.values(), start=Count())
    if found.rate is not None and total.n:
        least = "at least " if total.capped else ""
        took = output.age(total.n / found.rate)
        text = f"at a rate of {found.rate:g}/s it takes {least}{took}; new tasks wait behind them"
        output.line(False, {}, text)
    if total.n:
        output.line(False, {}, EFFECTS_AGAIN)


def _one(found: GroupView, json: bool) -> None:
    if json:
        output.as_json(found)
        return
    output.fields(
        [
            ("group", found.name),
            ("state", _state(found)),
            ("until", output.moment(found.until_us)),
            ("queues", "all" if found.queues is None else ", ".join(found.queues)),
            ("created", output.moment(found.created_at_us)),
            ("begins at", output.moment(found.from_us)),
            ("last reset", output.moment(found.replay_us)),
            ("workers", found.workers),
            ("shards", found.owned),
            ("unread", found.lag),
            ("lag", output.age(found.lag_s)),
            ("alarm", "LAGGING" if found.lagging else None),
            ("objective", output.age(found.objective_s)),
            ("max age", output.age(found.max_age_s)),
            ("replay", None if found.replay is None else _replay(found.replay)),
        ]
    )


def _replay(found: WindowState) -> str:
    """Say how far the replay of a window is."""
    span = f"{output.moment(found.since_us)} to {output.moment(found.until_us)}"
    rate = f" at {found.rate:g}/s" if found.rate else ""
    due = f", the last falls due {output.moment(found.due_us)}" if found.copied else ""
    return f"{span}, not ended: {found.copied:,} tasks put back{rate}{due}"


def replays(found: Sequence[GroupView]) -> None:
    """Print the replays of windows that are under way, if there are any."""
    rows = [
        (
            g.name,
            output.moment(g.replay.since_us),
            output.moment(g.replay.until_us),
            f"{g.replay.copied:,}",
            f"{g.replay.rate:g}" if g.replay.rate else None,
            output.moment(g.replay.due_us) if g.replay.copied else None,
        )
        for g in found
        if g.replay is not None
    ]
    if rows:
        columns = ("group", "enqueued from", "until", "put back>", "a second>", "the last is due")
        output.table("Replays of windows that have not ended", columns, rows)


def wait(
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="TOKEN",
            help="The token that an enqueue returned: a task's id.",
            show_default=False,
        ),
    ],
    group: Annotated[str, typer.Option(help="The consumer group.")] = "default",
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 30s or 5m. Default: for ever.")
    ] = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Wait until a group has settled every task enqueued no later than TOKEN's.

    A dead letter is settled; a task that is parked for later, or to be retried, is not. Exit code
    1 when the time is up. Wait after the commit: a task that is in no table counts as gone, which
    is what becomes of one that every group has settled.
    """  # fmt: skip
    timeout_s = None if timeout is None else options.duration_us(timeout, "--timeout") / 1_000_000
    with options.control_of(url_option) as control:
        found = control.groups.wait(group, until, timeout_s=timeout_s)
    said = {
        "settled": "settled",
        "unknown": "unknown: it is in no table",
        "gone": "in no table: settled by every group and gone, or never committed",
    }
    output.line(json, found, said.get(found.state, f"{found.left} unsettled"))
    if not found.over:
        raise typer.Exit(1)


def retention(
    keep: Annotated[
        str | None, typer.Argument(metavar="[TIME]", help="Such as 7d; 0 for not at all.")
    ] = None,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show or set how long the log keeps what every group has settled.

    It is as far back as a group can be created or reset to; what a group has not settled is kept
    for it anyway. No longer than the journal is kept (the worker's journal_keep_s, 7 days).
    """
    with options.control_of(url_option) as control:
        if keep is not None:
            control.groups.set_retention(options.duration_us(keep, "TIME") / 1_000_000)
        kept_s = control.groups.retention()
    shown = output.age(kept_s) if kept_s else None
    output.line(json, {"retention_s": kept_s}, shown or "none")
