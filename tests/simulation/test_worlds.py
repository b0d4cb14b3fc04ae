"""Five hundred simulated worlds in which nothing that `late` promises may break.

A world that breaks is minimised and described; `python -m late.testing.simulation --first SEED
--seeds 1` lives it again. More of them: `make soak`.
"""

from __future__ import annotations

import logging

import pytest

from late.testing.simulation.minimise import describe, minimise
from late.testing.simulation.world import Plan, World

SEEDS = 500
AT_A_TIME = 20


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_no_promise_breaks(first: int) -> None:
    logging.disable(logging.CRITICAL)  # workers warn of every fault
    try:
        for seed in range(first, first + AT_A_TIME):
            result = World(Plan.draw(seed)).run()
            if result.error is not None:
                pytest.fail(describe(minimise(result)), pytrace=False)
    finally:
        logging.disable(logging.NOTSET)
