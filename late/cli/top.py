"""`late top`: the first screen of the page, live in a terminal.

The models are those of `late.web`, so that the page, this and the pager agree on what needs
attention; here they only become cells.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output
from late.cli.output import moment, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from late.control import Control
    from late.web.models.overview import Overview
    from late.web.models.queues import Row
    from late.web.snapshot import Point, Snapshot, SnapshotReader

COLORS = {"bad": "red", "warn": "yellow", "ok": "green"}
BARS = "▁▂▃▄▅▆▇█"
ATTENTION = 6
"""Most lines of what needs attention; the others are counted."""
QUIT = (b"q", b"Q", b"\x1b")
"""Keys that end it, as Ctrl-C does."""


def top(
    url: options.UrlArgument = None,
    url_option: options.Url = None,
    queue: Annotated[str, typer.Option(help="Only queues whose name holds this.")] = "",
    every: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.2, max=3_600)
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="One look; also where the output is no terminal.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what needs attention, the flow and the busiest queues, live, until `q`.

    One look takes no more than a tenth of the time, as on the page (late serve --roles web), and
    while the database does not answer, the last one stays and says how old it is.
    """
    with options.watching(url, url_option) as control, suppress(KeyboardInterrupt):
        if json:
            _as_json(control, queue)
            return
        live = not once and sys.stdout.isatty()
        asyncio.run(_run(control, queue, every, live=live))


def _as_json(control: Control, text: str) -> None:
    """Print one look for programs."""
    from late.web.models.overview import overview

    seen = control.look()
    model = overview(seen, most=None)
    output.as_json(
        {
            "now_us": seen.status.now_us,
            "figures": model.tiles,
            "attention": model.attention,
            "unseen": model.unseen,
            "workers": seen.status.workers,
            "queues": [q for q in seen.status.queues if text.lower() in q.queue.lower()],
        }
    )


async def _run(control: Control, text: str, every_s: float, *, live: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from late.web.snapshot import SnapshotReader

    # What goes wrong is on the screen; a line of the log would tear it.
    logging.getLogger("late.web").addHandler(logging.NullHandler())
    look = SnapshotReader(control, every_s=every_s)
    # Into a pipe there is no height to fit.
    console = Console(highlight=False, markup=False, width=None if live else 120)
    stop = asyncio.Event()
    try:
        await look.seen()
        if not live:
            console.print(await _frame(look, control.url, text, 1_000, whole=True))
            return
        with _keys(stop.set), Live(console=console, screen=True, auto_refresh=False) as shown:
            while not stop.is_set():
                frame = await _frame(look, control.url, text, console.height)
                shown.update(frame, refresh=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await stop.wait()
    finally:
        await look.close()


@contextmanager
def _keys(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at `q`. Without a terminal that can tell keys, only Ctrl-C ends it."""
    try:
        import termios
        import tty

        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (ImportError, OSError, ValueError, termios.error):
        yield
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(fd, 64)
        # A terminal that was closed gives nothing for ever.
        if not pressed or pressed[:1] in QUIT:
            stop()

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def _frame(
    look: SnapshotReader, where: str, text: str, height: int, *, whole: bool = False
) -> RenderableType:
    seen = await look.seen()
    return frame(
        seen, list(look.points), where=where, text=text, height=height,
        trouble=look.trouble, age_s=look.age_s, whole=whole,
    )  # fmt: skip


def frame(
    seen: Snapshot,
    points: Sequence[Point],
    *,
    where: str,
    text: str = "",
    height: int = 40,
    trouble: str = "",
    age_s: float = 0.0,
    whole: bool = False,
) -> RenderableType:
    """Return one screenful of at most `height` lines. No text drives the terminal or is read as
    markup."""
    from rich.console import Group
    from rich.text import Text

    from late.web import formats as shape
    from late.web.models import queues
    from late.web.models.overview import overview

    model = overview(seen)
    parts: list[RenderableType] = [
        Text(f"late top  {plain(where)}  {moment(seen.status.now_us)}", "bold", no_wrap=True)
    ]
    if trouble:
        parts.append(Text(f"{trouble} What you see is {shape.age(age_s)} old.", "bold red"))
    parts += [_tiles(model), *_flow(points), *_attention(model, whole=whole)]
    if model.unseen:
        parts.append(Text(model.unseen, "dim", overflow="fold"))
    rows = [row for row in queues.rows(seen) if text.lower() in row.status.queue.lower()]
    rows.sort(key=lambda row: -(row.status.depth.n + row.status.in_flight.n))
    room = max(1, height - len(parts) - 4)
    parts.append(_queues(rows[:room]))
    if len(rows) > room:
        parts.append(Text(f"and {len(rows) - room:,} more", "dim"))
    return Group(*parts)


def _tiles(model: Overview) -> RenderableType:
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    for tile in model.tiles:
        style = "bold" if tile.level == "ok" else f"bold {COLORS[tile.level]}"
        line.append(f"{tile.label} ", "dim").append(f"{tile.value}  ", style)
    return line


def _flow(points: Sequence[Point]) -> list[RenderableType]:
    """Return lines of backlog and attempts a second since the start, each by its own greatest."""
    from rich.text import Text

    if len(points) < 2:
        return []
    last = points[-60:]
    lines = (("backlog", [p[1] for p in last]), ("attempts/s", [p[2] for p in last]))
    return [
        Text(f"{name:<11}{bars(values)} {values[-1]:,.4g}", "cyan", no_wrap=True)
        for name, values in lines
    ]


def bars(values: Sequence[float | None]) -> str:
    """Return a line of bars, in proportion to the greatest of the values; a gap is a space."""
    most = max((value for value in values if value is not None), default=0) or 1
    return "".join(
        " " if value is None else BARS[min(len(BARS) - 1, int(value / most * len(BARS)))]
        for value in values
    )


def _attention(model: Overview, *, whole: bool) -> list[RenderableType]:
    """Return the lines of what needs attention; `whole`: all of them, and nothing is cut off."""
    from rich.text import Text

    if not model.attention:
        text = f"Nothing needs attention. {model.backlog}".strip()
        return [Text(text, "" if model.still else "green", overflow="fold")]
    lines: list[RenderableType] = []
    most = len(model.attention) if whole else ATTENTION
    for each in model.attention[:most]:
        line = Text(no_wrap=not whole, overflow="ellipsis")
        line.append("● ", COLORS[each.level]).append(plain(each.what), "bold")
        lines.append(line.append(f"  {plain(each.detail)}"))
        if each.command:
            command = f"  run: {plain(each.command)}"
            lines.append(Text(command, "cyan", no_wrap=not whole, overflow="fold"))
    more = len(model.attention) - most + model.more
    return [*lines, Text(f"  and {more} more", "dim")] if more > 0 else lines


def _queues(rows: Sequence[Row]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from late.web import formats as shape

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
    made.add_column("queue", overflow="ellipsis", no_wrap=True, ratio=2)
    made.add_column("group", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("pace", "waiting", "in progress", "parked", "dead", "oldest"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("state", no_wrap=True)
    for row in rows:
        of = row.status
        counts = [shape.count(n) for n in (of.depth, of.in_flight, of.parked, of.dead)]
        made.add_row(
            Text(plain(of.queue)), Text(plain(of.group or "-")),
            "-" if row.pace is None else f"{shape.number(row.pace.rate)}/s",
            *counts, shape.age(of.oldest_age_s),
            Text(", ".join(row.badges), COLORS[row.level]),
        )  # fmt: skip
    return made
