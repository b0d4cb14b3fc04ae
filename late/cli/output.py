"""Print tables for people and JSON for programs, without control characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from late.errors import ConfigError

if TYPE_CHECKING:
    from late.control.past.as_of import AsOf


NOT_CUT: Mapping[str, int] = {}


def as_json(value: Any) -> None:
    """Print one JSON document. Times are microseconds since the Unix epoch."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def as_known_json(answer: Any) -> None:
    """Print one JSON document without what is not known of its moment."""
    from late.control.past.moment import left_out

    as_json(left_out(answer))


def line(json: bool, value: Any, text: str) -> None:
    """Print `value` as JSON if that is asked for, else one line of text."""
    if json:
        as_json(value)
    else:
        typer.echo(text)


def listed(
    json: bool, value: Any, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Print `value` as JSON if that is asked for, else a table; see `table`."""
    if json:
        as_json(value)
    else:
        table(title, columns, rows)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    hide: Collection[str] = (),
    cut: Mapping[str, int] = NOT_CUT,
) -> None:
    """Print a table; columns whose name ends in `>` are aligned to the right.

    Into a pipe there is no width to fit: every row stays one line of full cells.

    Args:
        hide: the columns that are left out.
        cut: the characters that a cell of a column has at most, where every row is one line. A
            terminal breaks the line.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = [place for place, column in enumerate(columns) if column.rstrip(">") not in hide]
    piped = not sys.stdout.isatty()
    most = [cut.get(columns[place].rstrip(">")) if piped else None for place in shown]
    listed = [
        [_cut(plain(row[place]), n) for place, n in zip(shown, most, strict=True)] for row in rows
    ]
    if not listed:
        typer.echo(f"{title}: none")
        return
    made = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in (columns[place] for place in shown):
        right = column.endswith(">")
        made.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in listed:
        made.add_row(*row)
    Console(highlight=False, markup=False, width=1_000 if piped else None).print(made)


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print `name  value` lines, leaving out what is None."""
    shown = [(name, plain(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        typer.echo(f"{name:<{width}}  {value}")


def plain(value: object) -> str:
    """Return text for a terminal: a task's name or error must not drive it, nor be markup."""
    if value is None:
        return "-"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def moment(us: int | None) -> str | None:
    """Format a time in UTC, to the second."""
    if us is None:
        return None
    try:
        return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{us} us"


def age(seconds: float | None) -> str | None:
    """Format a time span in its two largest units."""
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
    """Print a line for people to stderr, so that a pipe gets the result alone."""
    typer.echo(text, err=True)


def not_known(as_of: AsOf | None) -> None:
    """Name the parts that are left out of an answer about the past, by why they are."""
    fields: dict[str, list[str]] = {}
    for each in as_of.not_known if as_of else ():
        fields.setdefault(each.why, []).append(each.field)
    for why, names in fields.items():
        note(f"not known for then: {', '.join(names)} ({why})")


def hidden(as_of: AsOf | None, columns: Mapping[str, str]) -> set[str]:
    """Return the columns of a table that are not known; `columns` has the column of each field."""
    return {columns[e.field] for e in (as_of.not_known if as_of else ()) if e.field in columns}


def write_whole(path: Path, text: str) -> None:
    """Write a file as a whole or not at all; see `draft_of`."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Lend a path for a draft of the file, which takes its place at the end of the block.

    Raises:
        ConfigError: the folder is missing or may not be written to.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)


def refuse_existing(path: Path | None, *, force: bool) -> None:
    """Refuse to replace a file, unless `--force` was given.

    Raises:
        ConfigError: it is there.
    """
    if path is not None and path.exists() and not force:
        raise ConfigError(f"{path} is there already: --force replaces it")
