"""The state machine of `machine`, on the simulator's logs and on every real store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.backends import Backend
from tests.conformance.machine import Machine
from tests.conformance.machine_fakes import FAKES
from tests.conformance.machine_worlds import RealWorld, World
from tests.sizes import LONG_RUN

SIZE = float(os.environ.get("LATE_TEST_MACHINE", "1" if LONG_RUN else "0.4"))
"""How many times as many examples as a long run of the suite has."""
STEPS = 50


def live(world: World, examples: int) -> None:
    run_state_machine_as_test(
        partial(Machine, world),  # type: ignore[arg-type]
        settings=settings(
            max_examples=max(1, round(examples * SIZE)),
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=SIZE <= 1,
            suppress_health_check=list(HealthCheck),
            phases=[phase for phase in Phase if phase is not Phase.explain],
        ),
    )


@pytest.fixture
def real(backend: Backend, url: str) -> Iterator[RealWorld]:
    world = RealWorld(backend, url)
    yield world
    world.close()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("profile", FAKES)
def test_a_log_of_the_simulator_keeps_the_contract(profile: str) -> None:
    world = FAKES[profile]()
    live(world, 100)
    world.close()


@pytest.mark.timeout(0)
def test_a_store_keeps_the_contract(real: RealWorld, backend: Backend) -> None:
    # As many as a round trip, and what else the machine does, can afford.
    live(real, 6 if backend.emulated else 50 if real.exclusive else 20)
