"""The worlds in which a seeded defect must show; without one they are a few worlds more."""

from __future__ import annotations

import os
from typing import get_args

import pytest

from tests.defects.defect import FIRST_WORLD, WORLDS
from tests.simulator.minimise import describe
from tests.simulator.plan import Plan, Profile
from tests.simulator.world import World

pytestmark = pytest.mark.usefixtures("quick_worlds")


def test_no_promise_breaks() -> None:
    first, number, name = os.environ.get(WORLDS, f"{FIRST_WORLD}:4:").split(":")
    profile = next((known for known in get_args(Profile) if known == name), None)
    assert profile is not None or not name
    for seed in range(int(first), int(first) + int(number)):
        result = World(Plan.draw(seed, profile)).run()
        if result.error is not None:
            lived = seed - int(first) + 1
            pytest.fail(f"world {lived}: {describe(result)}", pytrace=False)
