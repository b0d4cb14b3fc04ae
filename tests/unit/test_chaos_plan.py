"""The plan of a storm: one seed, one storm; and every kind of transaction that a database has."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from tests.chaos.plan import Size, Traits, deeds, fates, faults, lasts_s

ALL = Traits(savepoints=True, prepared=True, network=True, writers=True)
FILE = Traits(savepoints=True, prepared=False, network=False, writers=False)
NONE = Traits(savepoints=False, prepared=False, network=True, writers=False)
SIZE = Size(1_000, faults={"kill_worker": 3, "reset": 2})


def test_a_seed_says_it_all() -> None:
    first, again = (list(islice(deeds(7, 1, ALL, SIZE), 50)) for _ in range(2))
    assert first == again
    assert first != list(islice(deeds(8, 1, ALL, SIZE), 50))
    assert first != list(islice(deeds(7, 2, ALL, SIZE), 50)), "producers differ"
    assert faults(7, SIZE) == faults(7, SIZE) != faults(8, SIZE)


def test_every_fault_that_was_asked_for_comes_once() -> None:
    planned = faults(7, SIZE)
    assert Counter(fault.what for fault in planned) == SIZE.faults
    assert lasts_s(7, SIZE) == sum(fault.pause_s for fault in planned)


@pytest.mark.parametrize("calm", [True, False])
@pytest.mark.parametrize("traits", [ALL, FILE, NONE])
def test_a_database_gets_only_what_it_can_do(traits: Traits, calm: bool) -> None:
    shares = fates(traits, calm=calm)
    assert sum(shares.values()) == 100
    assert ("savepoint" in shares) == traits.savepoints
    assert ("prepare" in shares) == traits.prepared
    assert ("cut" in shares) == (traits.network and not calm)
    assert ("die" in shares) != calm
    size = Size(1_000, calm=calm)
    seen = Counter(deed.fate for deed in islice(deeds(7, 0, traits, size), 2_000))
    assert set(seen) == set(shares)
    assert 0.15 < seen["rollback"] / 2_000 < 0.25
