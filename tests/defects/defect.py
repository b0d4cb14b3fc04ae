"""What a seeded defect is, and how it is switched on: by `LATE_DEFECT` and this test suite only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

SWITCH = "LATE_DEFECT"
WORLDS = "LATE_TEST_WORLDS"
"""Which worlds `test_worlds` lives: `first:number:profile`, the profile may be empty."""
FIRST_WORLD = 100_000
"""Worlds that those of `make test` are not among: a defect must not be tuned to them."""


@dataclass(frozen=True)
class Defect:
    """A mistake that somebody could make, in one place, and what must find it."""

    name: str
    what: str
    """In a sentence, for `make defects` and `docs/proof.md`."""
    break_it: Callable[[], None]
    """Patches one function or statement of `late`; only ever called in a process of its own."""
    finds: str
    """A test, as pytest names it; or a profile of the simulator, or `worlds` for all of them."""
    because: str
    """A regular expression that the failure must match: the reason, and not any failure."""
    worlds: int = 0
    """How many worlds it may take, if the simulator is to find it."""
    first: int = FIRST_WORLD
    """The first of them."""
    listed: str = ""
    """What the list of defects in the design calls it, where the name says something else."""
    fast: bool = False
    """Whether it is part of every `make test`."""

    @property
    def simulated(self) -> bool:
        return self.worlds > 0

    @property
    def test(self) -> str:
        return "tests/defects/test_worlds.py" if self.simulated else self.finds

    def environment(self, *, broken: bool) -> dict[str, str]:
        """What the process that runs `test` needs to know."""
        given = {key: value for key, value in os.environ.items() if key != SWITCH}
        if self.simulated:
            profile = "" if self.finds == "worlds" else self.finds
            given[WORLDS] = f"{self.first}:{self.worlds}:{profile}"
        return given | ({SWITCH: self.name} if broken else {})
