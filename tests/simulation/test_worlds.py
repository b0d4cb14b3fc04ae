"""Nearly five hundred simulated worlds in which nothing that `late` promises may break.

A budget of processor time says how many `make test` lives; `make test-long` lives all of them.

A world that breaks is minimised and described; `python -m tests.simulator --first SEED
--seeds 1` lives it again. More of them: `make soak`.
"""

from __future__ import annotations

import time

import pytest

from tests.simulator.minimise import describe, minimise
from tests.simulator.plan import Plan
from tests.simulator.world import World
from tests.sizes import Budget

FIRST = (0, 800_000, 900_000, 930_000)
"""From the second on tasks may be background, from the fourth on there are two lanes; before the
third tasks may share transactions."""
SEEDS, AT_A_TIME = 160, 20
BUDGET_S = 1.0
"""Processor time for these, but `FLOOR` of them are lived in any case."""
FLOOR = 2
BROKE = [
    8_650, 17_480, 21_937, 25_592, 32_036, 40_404, 43_313, 47_757, 49_578, 202_278, 203_777,
    300_617, 301_382, 700_071,
]  # fmt: skip
"""What `make soak` has found broken so far: `docs/proof.md` says why."""


pytestmark = pytest.mark.usefixtures("quick_worlds")


@pytest.mark.parametrize(
    "first", [first + more for first in FIRST for more in range(0, SEEDS, AT_A_TIME)]
)
def test_no_promise_breaks(first: int) -> None:
    budget = Budget(BUDGET_S, floor=FLOOR)
    for seed in range(first, first + AT_A_TIME):
        if budget.is_spent():
            break
        began = time.process_time()
        _live(seed)
        budget.spend(time.process_time() - began)


@pytest.mark.parametrize("seed", BROKE)
def test_what_broke_once_holds(seed: int) -> None:
    _live(seed)


def _live(seed: int) -> None:
    result = World(Plan.draw(seed)).run()
    if result.error is not None:
        pytest.fail(describe(minimise(result)), pytrace=False)
