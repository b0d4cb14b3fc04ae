"""The reader of the marks that handlers leave. Pure but for reading the file.

| line | means |
|---|---|
| `first TIME` | the first no-op of a process started |
| `seen COUNT` | that many more no-ops have |
| `NUMBER TIME` | the task with this number started |

Times are nanoseconds of the machine's clock, which all processes here share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Marks:
    first_ns: int | None = None
    """The earliest of all processes."""
    seen: int = 0
    started: dict[int, int] = field(default_factory=dict)
    """Number of a task -> its first start. A task may start twice; that is counted."""
    again: int = 0


def lines(file: Path) -> list[str]:
    """The lines so far. The last one may be half written while the worker runs: it is left out."""
    return file.read_text().rpartition("\n")[0].splitlines()


def parse(written: Sequence[str]) -> Marks:
    found = Marks()
    for line in written:
        what, _, value = line.partition(" ")
        number = int(value)
        if what == "first":
            found.first_ns = number if found.first_ns is None else min(found.first_ns, number)
        elif what == "seen":
            found.seen += number
        else:
            task = int(what)
            found.again += task in found.started
            found.started[task] = min(number, found.started.get(task, number))
    return found


def pairs(file: Path) -> dict[int, int]:
    """A producer's commits: number -> time."""
    found = (line.split() for line in file.read_text().splitlines())
    return {int(number): int(at) for number, at in found}


def lags_ms(committed: Mapping[int, int], started: Mapping[int, int]) -> list[float]:
    """From each commit to its start, ascending, in milliseconds.

    The commit's time is taken after its reply: a worker that was faster has a lag of zero.

    Raises:
        KeyError: a committed task has not started.
    """
    return sorted(max(0.0, (started[number] - at) / 1e6) for number, at in committed.items())


def summary(ascending: Sequence[float], seconds: float) -> dict[str, float]:
    """Rate reached and the ranks that are shown; nearest rank, so values that were measured."""

    def rank(share: float) -> float:
        return round(ascending[min(len(ascending) - 1, round(share * len(ascending)))], 3)

    return {
        "reached_per_s": len(ascending) / seconds,
        "p50_ms": rank(0.50),
        "p95_ms": rank(0.95),
        "p99_ms": rank(0.99),
        "max_ms": round(ascending[-1], 3),
    }
