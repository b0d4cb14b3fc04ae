"""Print tables for people, JSON for programs; control characters for neither."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from late.errors import ConfigError


def as_json(value: Any) -> None:
    """Print one JSON document. Times are microseconds since the Unix epoch."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name ends in `>` are aligned to the right.

    Into a pipe there is no width to fit: every row stays one line of full cells.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    listed = [[plain(cell) for cell in row] for row in rows]
    if not listed:
        typer.echo(f"{title}: none")
        return
    made = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in columns:
        right = column.endswith(">")
        made.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in listed:
        made.add_row(*row)
    width = None if sys.stdout.isatty() else 1_000
    Console(highlight=False, markup=False, width=width).print(made)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print `name  value` lines, leaving out what is None."""
    shown = [(name, plain(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        typer.echo(f"{name:<{width}}  {value}")


def plain(value: object) -> str:
    """Text for a terminal: a task's name or error must not drive it, nor be read as markup."""
    if value is None:
        return "-"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def moment(us: int | None) -> str | None:
    """A time in UTC, to the second."""
    if us is None:
        return None
    try:
        return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{us} us"


def age(seconds: float | None) -> str | None:
    """A time span in its two largest units."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, size, below, factor in (
        ("m", 60, "s", 1),
        ("h", 3_600, "m", 60),
        ("d", 86_400, "h", 3_600),
    ):
        if whole < size * {"m": 60, "h": 24, "d": 10**9}[unit]:
            return f"{whole // size}{unit} {whole % size // factor}{below}"
    return f"{whole}s"


def note(text: str) -> None:
    """A line for people, beside the result: to stderr, so that a pipe gets the result alone."""
    typer.echo(text, err=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file as a whole or not at all: beside its place, then renamed.

    Raises:
        ConfigError: the folder is missing or may not be written to.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
