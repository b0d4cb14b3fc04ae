"""The modules that are broken, by what they do: all of the scheduler, of the tailer and of the
stores. The store of CockroachDB is untried, so it is not among them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AREAS: dict[str, tuple[str, ...]] = {
    "core": (
        "late/scheduler/core/*.py",
        "late/scheduler/core/settlements/*.py",
        "late/scheduler/outcome_rules.py",
    ),
    "settle": (
        "late/store/[!c]*/journal.py",
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
    "limits": ("late/scheduler/limits/*.py",),
    "loop": ("late/scheduler/*.py",),
    "waking": (
        "late/store/[!c]*/wake_ups.py",
        "late/tailer/announcement.py",
        "late/tailer/read_hints.py",
        "late/tailer/release_notice.py",
    ),
    "fleet": ("late/tailer/*.py",),
    "compaction": (
        "late/store/common/*.py",
        "late/store/compactor.py",
        "late/store/[!c]*/compaction.py",
    ),
    "stores": ("late/store/*.py", "late/store/[!c]*/*.py"),
}
"""Patterns of each area's modules. One that several match is of the first of these areas."""
SIMULATED = ("core", "keeper", "limits", "loop", "fleet")
"""The areas that the simulator runs."""


def modules(area: str) -> list[str]:
    """Return the paths of an area's modules, from the root of the project, in order."""
    earlier = list(AREAS)[: list(AREAS).index(area)]
    taken = {path for each in earlier for path in _matching(each)}
    found = [path for path in _matching(area) if path not in taken]
    return [path.relative_to(ROOT).as_posix() for path in found]


def _matching(area: str) -> list[Path]:
    return [path for pattern in AREAS[area] for path in sorted(ROOT.glob(pattern))]
