"""The keys of a deployment: which one seals, and which are accepted."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from late.api.peer_keys import Keyring
from late.model.deployment_keys import KEPT_US, SPREAD_US, DeploymentKey, accepted, sealing

OLD = DeploymentKey(1, b"old", 0)
NEW = DeploymentKey(2, b"new", 1_000_000_000)
MOMENTS = st.integers(0, 10 * KEPT_US)


def test_a_new_key_seals_when_all_know_it() -> None:
    assert sealing([NEW, OLD], NEW.created_at_us + SPREAD_US - 1) is OLD
    assert sealing([NEW, OLD], NEW.created_at_us + SPREAD_US) is NEW


def test_the_only_key_seals_at_once() -> None:
    assert sealing([NEW], NEW.created_at_us) is NEW


def test_the_key_before_stays_valid_for_a_day() -> None:
    assert accepted([OLD, NEW], NEW.created_at_us + KEPT_US - 1) == [NEW, OLD]
    assert accepted([OLD, NEW], NEW.created_at_us + KEPT_US) == [NEW]


@given(st.lists(MOMENTS, min_size=1, max_size=6), MOMENTS, st.integers(0, SPREAD_US))
def test_what_one_process_seals_with_all_accept(
    created: list[int], now_us: int, behind_us: int
) -> None:
    """Also one whose clock is behind by as much as a key is old before it is used."""
    keys = [DeploymentKey(n, bytes([n]), at) for n, at in enumerate(sorted(created), 1)]
    assert sealing(keys, now_us) in accepted(keys, max(0, now_us - behind_us))
    assert all(a.number > b.number for a, b in pairwise(accepted(keys, now_us)))


async def test_a_process_takes_a_new_key_in_without_a_restart() -> None:
    stored, now_us = [OLD], [0]
    keys = Keyring(lambda: list(stored), lambda: now_us[0])
    await keys.load()
    assert keys.current == b"old"
    stored.append(NEW)
    now_us[0] = NEW.created_at_us + 1
    await keys.load()
    assert (keys.current, keys.accepted) == (b"old", [b"new", b"old"])
    now_us[0] += SPREAD_US
    assert keys.current == b"new"
    stored.remove(OLD)
    await keys.load()
    assert keys.accepted == [b"new"]
