"""`late lake`: usage as Parquet files, for reports over more time than the journal is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import output
from late.cli.options import Json, Url, control_of, near_source, url_of
from late.errors import ConfigError

if TYPE_CHECKING:
    from late_spark.export import Source

app = typer.Typer(
    help="Usage as Parquet files (extra late-queue[reports]): export, show.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The lake.", show_default=False)]


def missing(error: ModuleNotFoundError) -> ConfigError:
    """Return the error that names the extra to install."""
    extra = "spark" if error.name in ("py4j", "pyspark") else "reports"
    return ConfigError(f'{error.name} is not installed: pip install "late-queue[{extra}]"')


@app.command("export")
def export(
    folder: Folder,
    accept_gaps: Annotated[
        bool,
        typer.Option("--accept-gaps", help="Go on where settlements were pruned before they were "
                     "exported; reports of that time refuse without --accept-gaps."),
    ] = False,
    url_option: Url = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Bring the lake up to what the journal has now, each settlement once.

    Run it more often than the journal is pruned: what it has exported may go. An export that dies
    is done again by the next one. Needs no Java.

    The replica of LATE_READ_URL is read while it is near enough and has what the lake has: a line
    says so, or why the database was read. On Spanner all is read at one moment, LATE_READ_LAG_S
    ago.
    """
    url = url_of(url_option)
    try:
        from late_spark.export import export as work
    except ModuleNotFoundError as error:
        raise missing(error) from None
    try:
        done = work(url, folder, accept_gaps=accept_gaps, say=output.note, near=_near(url))
    except OSError as error:  # A mount that is away, a full disk: the next export goes on.
        raise ConfigError(f"lake {error.filename or folder}: {error.strerror or error}") from error
    if json:
        output.as_json({"settlements": done.settlements, "rows": done.rows, "files": done.files,
                        "compacted": done.compacted, "version": done.version})  # fmt: skip
        return
    typer.echo(
        f"{done.settlements:,} settlements, {done.rows:,} rows of usage in {done.files:,} new files"
        + (f"; {done.compacted:,} small files put together" if done.compacted else "")
    )


def _near(url: str) -> Source | None:
    """Return the replica of LATE_READ_URL, or say why it is not read; None without one."""
    from late_spark.export import Source
    from late_spark.fetch import Moment

    with control_of(url) as control:
        # On CockroachDB each transaction of a follower would have a moment of its own.
        if control.store == "cockroachdb":
            return None
        found, told = near_source(control)
    if told:
        output.note(told)
    if found is None:
        return None
    where, stale_s = found
    if not stale_s:
        return Source(where)
    return Source(where, Moment(age_us=round(stale_s * 1_000_000), in_one=True))


@app.command("show")
def show(folder: Folder, json: Json = False) -> None:
    """Show what is in the lake: dates, journals, and gaps."""
    try:
        from late_spark import lake
    except ModuleNotFoundError as error:
        raise missing(error) from None
    found = lake.load(folder)
    if found is None:
        raise ConfigError(f"{folder} is no lake: late lake export {folder}")
    if json:
        output.as_json(found)
        return
    dates: dict[str, tuple[int, int, int]] = {}
    for each in found.files:
        files, rows, size = dates.get(each.date, (0, 0, 0))
        dates[each.date] = (files + 1, rows + each.rows, size + each.size_bytes)
    output.note(f"deployment {found.deployment}, version {found.version}")
    output.table(
        "Dates", ("date", "files>", "rows>", "bytes>"),
        [(day, *of) for day, of in sorted(dates.items())],
    )  # fmt: skip
    output.table(
        "Journals", ("group", "shard>", "first>", "from", "last>", "to"),
        [(j.group, j.shard_id, j.first, output.moment(j.first_us), j.last, output.moment(j.last_us))
         for j in found.journals],
    )  # fmt: skip
    if found.gaps:
        output.table(
            "Gaps", ("group", "shard>", "first>", "last>", "from", "to"),
            [(gap.group, gap.shard_id, gap.first, gap.last,
              output.moment(gap.from_us), output.moment(gap.to_us)) for gap in found.gaps],
        )  # fmt: skip
