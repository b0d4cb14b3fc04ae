"""`late celery ramp`: the share of each task's calls that late takes from Celery."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.errors import ConfigError
from late.model.task import DEFAULT_GROUP

if TYPE_CHECKING:
    from late.control import Control
    from late.control.queue_settings import SettingsChange
    from late.control.status.celery_shares import Ramp, Side
    from late.model.queue_settings import QueueSettings

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TASK...] [PERCENT|on|off]",
        help="Names of tasks or patterns such as 'shop.*', and the share of their calls that late"
        " takes; off: none until it is on again.",
        show_default=False,
    ),
]


def ramp(
    words: Words = None,
    every: Annotated[
        bool, typer.Option("--all", help="Set the share of every task that is known.")
    ] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Count from here: an age or a time.")
    ] = "1h",
    group: options.Group = None,
    dry_run: options.DryRun = False,
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show how tasks move from Celery to late, or set their share: `ramp shop.send 'mail.*' 50`.

    Producers follow within 5 s. A pattern means the tasks that live workers know or that had calls
    since TIME. The counts are those of late's journal: calls and their ends here, calls that
    Celery's broker was given, and what Celery's workers tell of failures and of late starts.
    """
    from late.control.status import celery_shares

    given = list(words or ())
    share = given.pop() if given and (every or len(given) > 1) else None
    knobs = None if share is None else _asked(share)
    patterns = ["*"] if every and not given else given
    group = group or DEFAULT_GROUP
    with options.control_of(url_option) as control:
        since_us = options.moment_us(since, "since", control.now())
        found = celery_shares.read(control, since_us=since_us, group=group)
        if knobs is None:
            shown = [r for r in found if not patterns or _fits(r.task, patterns)]
            if not shown and patterns and _is_share(patterns[0]):
                raise ConfigError(f"{patterns[0]} of which task? Give its name before it, or --all")
            _show(shown, json)
            return
        able, routed = _known(control, group)
        names = _named(patterns, {each.task for each in found} | routed)
        turned = {
            name: control.queues.change("queue", celery_shares.PREFIX + name, knobs,
                                        dry_run=dry_run)
            for name in names
        }  # fmt: skip
    if json:
        changes = list(turned.values())
        output.as_json(changes[0] if patterns == names[:1] else {"changes": changes})
    else:
        _tell(turned, dry_run=dry_run)
    reasons = {each.task: ", ".join(sorted(each.unsupported)) for each in found}
    for name in names:
        if able is None or name in able or not _share(turned[name].after):
            continue
        if name in routed:
            why = reasons.get(name) or "it has something that late does not support"
            output.note(f"{name} stays on Celery, whatever its share is: {why}")
        else:
            output.note(f"no live worker of late runs {name}: its calls wait until one does")


def _known(control: Control, group: str) -> tuple[set[str] | None, set[str]]:
    """Return the tasks that live workers run, None if not known, and those that a router made."""
    from late.control.status.celery_shares import PREFIX

    fleet = control.compare_handlers({}, group=group)
    names = {known.name for known in fleet.missing}
    routed = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
    return None if fleet.undeclared else names, routed


def _named(patterns: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the tasks that names and patterns mean, in order. A name need not be known.

    Raises:
        ConfigError: a pattern fits none.
    """
    names: list[str] = []
    for pattern in patterns:
        is_name = not any(sign in pattern for sign in "*?[")
        found = [pattern] if is_name else sorted(n for n in known if fnmatchcase(n, pattern))
        if not found:
            raise ConfigError(f"no task fits {pattern[:128]!r}: start the workers of late first,"
                              " or give its name")  # fmt: skip
        names += found
    return list(dict.fromkeys(names))


def _fits(task: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(task, pattern) for pattern in patterns)


def _show(shown: list[Ramp], json: bool) -> None:
    columns = ("task", "late", "calls>", "errors>", "dead>", "late p50>", "p99>", "Celery: calls>",
               "errors>", "dead>", "late p50>", "p99>", "not supported")  # fmt: skip
    rows = [
        (
            each.task,
            f"{100 * each.share:g}%" + ("" if each.on else " off"),
            *_side(each.late),
            *_side(each.celery),
            ", ".join(f"{reason} {n}" for reason, n in sorted(each.unsupported.items())),
        )
        for each in shown
    ]
    output.listed(json, {"tasks": shown}, "Tasks on their way from Celery", columns, rows)


def _tell(turned: dict[str, SettingsChange], *, dry_run: bool) -> None:
    for name, change in turned.items():
        if change.before == change.after:
            typer.echo(f"{name}: nothing to change: {_state(change.after)}")
            continue
        would = "would be: " if dry_run else ""
        typer.echo(f"{name}: {would}{_state(change.after)}; before: {_state(change.before)}")
        if change.audit_id is not None:
            typer.echo(f"  undo: late knobs rollback {change.audit_id}")
    if any(change.audit_id is not None for change in turned.values()):
        typer.echo("producers follow within 5 s")


def _state(settings: QueueSettings) -> str:
    percent = f"{100 * (settings.late_share or 0):g}%"
    if settings.closed:
        return f"off, all calls go to Celery, the share of {percent} is kept"
    return f"{percent} of the calls go to late"


def _share(settings: QueueSettings) -> float:
    return 0.0 if settings.closed else settings.late_share or 0.0


def _asked(share: str) -> dict[str, object]:
    """Return the knobs for a percentage, `on` or `off`."""
    if share in ("on", "off"):
        return {"closed": True if share == "off" else None}
    try:
        percent = float(share.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise ConfigError(f"the share is 0..100, on or off, got {share[:32]!r}")
    return {"late_share": percent / 100}


def _is_share(word: str) -> bool:
    try:
        return bool(_asked(word))
    except ConfigError:
        return False


def _side(side: Side) -> tuple[object, ...]:
    waits = [None if s is None else f"{s:.3f} s" for s in (side.late_p50_s, side.late_p99_s)]
    return (side.calls, side.errors, side.dead, *waits)
