"""The keys of a deployment: which one seals, and which are accepted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.api.access.peer_keys import RENEW_EVERY_S, Keyring
from late.api.pull.deliveries import LIFE_US
from late.api.pull.receipts import Receipt, UnknownReceipt, seal
from late.errors import StoreUnavailable
from late.model.deployment_keys import KEPT_US, SPREAD_US, DeploymentKey, accepted, sealing

OLD = DeploymentKey(1, b"old", 0)
NEW = DeploymentKey(2, b"new", 1_000_000_000)
MOMENTS = st.integers(0, 10 * KEPT_US)


def test_a_new_key_seals_when_all_know_it() -> None:
    assert sealing([NEW, OLD], NEW.created_at_us + SPREAD_US - 1) is OLD
    assert sealing([NEW, OLD], NEW.created_at_us + SPREAD_US) is NEW


def test_the_only_key_seals_at_once() -> None:
    assert sealing([NEW], NEW.created_at_us) is NEW


def test_the_key_before_stays_valid_for_longer_than_a_receipt() -> None:
    assert KEPT_US >= LIFE_US + 2 * SPREAD_US
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


RECEIPT = Receipt("w-1", "payments", "default", 0, 1, "t", 1, 1, 2**60)


def late_keyring() -> tuple[Keyring, list[DeploymentKey], list[float]]:
    """A process that has not read the newest key yet."""
    stored, clock = [OLD], [0.0]
    keys = Keyring(lambda: list(stored), lambda: 2 * NEW.created_at_us, lambda: clock[0])
    keys._keys = [OLD]
    stored.append(NEW)
    return keys, stored, clock


async def test_a_receipt_of_a_key_that_was_not_read_yet_is_good() -> None:
    keys, _, _ = late_keyring()
    assert await keys.unseal(seal(NEW.value, RECEIPT)) == RECEIPT


async def test_a_receipt_of_a_key_that_was_removed_is_not() -> None:
    keys, stored, _ = late_keyring()
    stored.remove(OLD)
    await keys.load()
    with pytest.raises(UnknownReceipt):
        await keys.unseal(seal(OLD.value, RECEIPT))


async def test_forged_receipts_do_not_make_reads() -> None:
    keys, stored, clock = late_keyring()
    reads = []
    keys._read = lambda: reads.append(clock[0]) or list(stored)
    for at_s in (0.0, 0.1, RENEW_EVERY_S - 0.01, RENEW_EVERY_S):
        clock[0] = at_s
        with pytest.raises(UnknownReceipt):
            await keys.unseal(seal(b"forged", RECEIPT))
    assert reads == [0.0, RENEW_EVERY_S]


async def test_without_the_database_the_known_keys_count() -> None:
    keys, _, _ = late_keyring()

    def away() -> list[DeploymentKey]:
        raise StoreUnavailable("away")

    keys._read = away
    with pytest.raises(UnknownReceipt):
        await keys.unseal(seal(NEW.value, RECEIPT))
    assert await keys.unseal(seal(OLD.value, RECEIPT)) == RECEIPT


def test_no_text_of_a_key_shows_its_value() -> None:
    assert "new" not in f"{NEW!r} {NEW} {[NEW]}"
