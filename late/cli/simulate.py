"""`late simulate`: a queue's past with other knobs or workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from late.cli import options, output

if TYPE_CHECKING:
    from late.control.simulation.comparison import Course, Simulation, Waits

PERCENTILES = ("p50", "p95", "p99")


def simulate(
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KNOBS",
            help='One variant: `--set "rate=50 concurrency=20"`. There are rate, burst, '
            "concurrency, workers, slots. Several times: several variants.",
        ),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="A time with its zone, or an age.")
    ] = "24h",
    workers: Annotated[
        int | None, typer.Option("--workers", help="Workers of each variant.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", help="Slots of each worker as it is, if none reports them."),
    ] = None,
    group: Annotated[str, typer.Option("--group", help="The consumer group.")] = "default",
    url_option: options.Url = None,
    json: options.Json = False,
) -> None:
    """Run what a queue has done again, with its knobs and with others.

    Arrivals, run times and waits come from the journal. The run with the same knobs is compared
    with what happened: that error says how good the answer is. Nothing is changed.
    """
    from late.control.simulation.variants import variants

    tried = variants(set_ or (), workers=workers)
    with options.control_of(url_option) as control:
        found = control.status.simulate(
            queue, since=since, group=group, variants=tried, slots=slots
        )
    if json:
        output.as_json(found)
        return
    title = f"Queue {queue} since {output.moment(found.since_us)}, {found.attempts:,} attempts"
    courses = (found.happened, found.replayed, *found.variants)
    numbers = (f"variant {place}>" for place in range(1, len(found.variants) + 1))
    output.table(title, ("", "happened>", "replayed>", "error>", *numbers), rows(found))
    for name, each in zip(("replayed", *(str(n) for n in range(1, 11))), courses[1:], strict=False):
        typer.echo(f"{name}: {each.knobs}")
    for note in (*_resolution(found), *found.notes):
        output.note(note)


def rows(found: Simulation) -> Iterator[tuple[str | None, ...]]:
    """Yield the rows of the table."""
    happened, others = found.happened, (found.replayed, *found.variants)

    def row(name: str, cells: list[str | None], error: str | None = None) -> tuple[str | None, ...]:
        return (name, *cells[:2], error, *cells[2:])

    courses = (happened, *others)
    for name in PERCENTILES:
        cells = [_seconds(getattr(each.wait_s, name)) for each in courses]
        yield row(f"wait {name}", cells, _error(found.error, name))
    yield row("greatest backlog", [f"{each.backlog_most:,}" for each in courses])
    yield row("time to drain it", [output.age(each.drain_s) for each in courses])
    yield row("busy slots", [f"{each.slots_busy:.2f}" for each in courses])
    for name in ("rate", "concurrency", "slots"):
        yield row(f"limited by {name}", [_share(each, name) for each in courses])


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.3g} s" if value < 100 else f"{value:,.0f} s"


def _error(error: Waits, name: str) -> str | None:
    value = getattr(error, name)
    return None if value is None else f"{value:+.0%}"


def _share(course: Course, name: str) -> str | None:
    return None if course.limited is None else f"{getattr(course.limited, name):.1%}"


def _resolution(found: Simulation) -> Iterator[str]:
    if found.summed:
        yield (
            f"of {found.summed:.0%} of the attempts the journal has sums of minutes or hours; "
            f"{_reading(found.bursts)} fits best"
        )
    if found.drag:
        yield f"the fleet was some {found.drag:.0%} slower than its knobs and run times say"
    if found.together > 1:
        yield f"{found.together} attempts at a time are run as one"


def _reading(bursts: int) -> str:
    if not bursts:
        return "arrivals that are even in each"
    return f"{bursts} bursts in each" if bursts > 1 else "one burst in each"
