"""The modules that are broken, by what they do. The store of CockroachDB is untried, so it is not
among them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AREAS: dict[str, tuple[str, ...]] = {
    "core": ("late/scheduler/core/*.py", "late/scheduler/outcome_rules.py"),
    "settle": (
        "late/store/[!c]*/journal.py",
        "late/store/postgres/timers.py",
        "late/store/[!c]*/statements.py",
    ),
    "tail": (
        "late/store/[!c]*/tail.py",
        "late/store/[!c]*/cursor.py",
        "late/store/sqlite/page_decoder.py",
        "late/tailer/tailer.py",
    ),
    "prune": ("late/store/[!c]*/prune.py", "late/store/postgres/partitions.py"),
    "keeper": (
        "late/tailer/lease_keeper.py",
        "late/tailer/ownership.py",
        "late/tailer/membership.py",
        "late/tailer/shard_quarantine.py",
        "late/store/[!c]*/membership.py",
    ),
}
SIMULATED = ("core", "keeper")
"""The areas that the simulator runs."""


def modules(area: str) -> list[str]:
    """Return the paths of an area's modules, from the root of the project, in order."""
    found = [path for pattern in AREAS[area] for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in found]
