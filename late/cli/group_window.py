"""`late group reset --from T --until U`: a replay of a window, slice by slice."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from late.cli import options, output
from late.errors import ConfigError
from late.schema.engine import EPOCH

EFFECTS_AGAIN = (
    "handlers do again what they did, also with transaction=True; ctx.once() alone does not"
)

if TYPE_CHECKING:
    from late.control import Control
    from late.control.groups.window import WindowReplay


def replay(
    name: str,
    since: str,
    until: str,
    url: str | None,
    rate: float | None,
    *,
    again: bool,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    """Rehearse a replay of a window, ask, and carry it out to its end.

    Raises:
        ConfigError: there is no rate, or a time cannot be read.
    """
    if rate is None:
        raise ConfigError("a replay of a window has a rate: give --rate, in tasks a second")
    with options.control_of(url) as control:
        since_us = _moment(since, "--from", control)
        until_us = _moment(until, "--until", control)
        if dry_run or not yes:
            shown = control.groups.replay_window(
                name, since_us, until_us, rate=rate, dry_run=True, again=again
            )
            if dry_run and json:
                output.as_json(shown)
                return
            _rehearsed(shown)
            if dry_run:
                return
            options.asked(f"Replay this window in group {name}?", f"this replays {shown.copied}")
        found = _carry_out(control, name, since_us, until_us, rate, again=again)
    if found.copied.n or json:
        output.line(json, found, f"{found.copied} tasks are put back, and run as they fall due")
    else:
        say_kept(found.kept_us, found.since_us)
        output.line(False, {}, "nothing is put back: there is no ended task of the window")


def _carry_out(
    control: Control, name: str, since_us: int, until_us: int, rate: float, *, again: bool
) -> WindowReplay:
    cancelled, begun = 0, False
    while True:
        found = control.groups.replay_window(
            name, since_us, until_us, rate=rate, again=again and not begun
        )
        if not (found.finished or begun):
            window = f"--from {_exact(since_us)} --until {_exact(until_us)}"
            output.note(f"if it is stopped, this goes on: late group reset {name} {window}"
                        f" --rate {rate:g}")  # fmt: skip
        begun = True
        cancelled += found.cancelled
        if found.finished:
            if cancelled:
                output.note(f"{cancelled:,} were left out: they were cancelled")
            return found
        time.sleep(found.wait_s)


def _moment(text: str, what: str, control: Control) -> int:
    if text == "beginning":
        return 0
    now = control.now()
    return now if text == "now" else max(0, options.moment_us(text, what, now))


def _rehearsed(found: WindowReplay) -> None:
    since, until = (_exact(us) for us in (found.since_us, found.until_us))
    output.table(
        f"Would run again in group {found.group}",
        ("queue", "tasks>"),
        [*found.queues.items(), ("all", found.copied)],
    )
    output.line(False, {}, f"enqueued from {since} until before {until}")
    say_kept(found.kept_us, found.since_us)
    if found.cancelled:
        output.line(False, {}, f"{found.cancelled:,} are left out: they were cancelled")
    if found.copied.n:
        least = "at least " if found.copied.capped else ""
        took = output.age(found.copied.n / found.rate)
        output.line(False, {}, f"at a rate of {found.rate:g}/s it takes {least}{took}")
        output.line(False, {}, EFFECTS_AGAIN)


def say_kept(kept_us: int | None, since_us: int) -> None:
    """Say what of the log before `since_us` is not there, and how it keeps more."""
    keep = "`late retention 7d` keeps more from now on"
    if kept_us is None:
        output.line(False, {}, f"the log keeps no task that has ended; {keep}")
    elif since_us < kept_us:
        since = output.moment(kept_us)
        output.line(False, {}, f"the log begins at {since}: what is older is not kept; {keep}")


def _exact(us: int) -> str:
    """Return a time to the microsecond, as the command reads it."""
    return (EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
