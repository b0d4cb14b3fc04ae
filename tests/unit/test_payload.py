"""The quick look at a payload's bytes agrees with the plain rule, whatever the bytes are."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from late.payload import DEPTH_MAX, KEYS_MAX, _is_harmless


def plainly(payload: bytes) -> bool:
    """The rule, slowly."""
    return (
        (
            len(payload) <= 2 * DEPTH_MAX  # too short to close what it opens: no JSON
            or payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX
        )
        and payload.count(b":") <= KEYS_MAX
        and b"\\u0000" not in payload
        and re.search(rb"[0-9]{19}", payload) is None
    )


PIECES = [b"1234567890123456789", b"123456789012345678", b"0" * 19, b"9", b'"', b"_", b"\\u0000"]
PIECES += [b"{", b"[" * 40, b":", b":" * KEYS_MAX, b"\xff", b"\xd9\xa0" * 19]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=20)), max_size=6))
@example([b"123456789", b"1234567890"])
@example([b":" * KEYS_MAX, b":"])
def test_the_quick_look_is_the_plain_rule(pieces: list[bytes]) -> None:
    payload = b"".join(pieces)
    assert _is_harmless(payload) == plainly(payload)


@pytest.mark.parametrize(("levels", "harmless"), [(DEPTH_MAX, True), (DEPTH_MAX + 1, False)])
def test_the_shortest_json_of_too_many_levels_is_looked_at(levels: int, harmless: bool) -> None:
    assert _is_harmless(b"[" * levels + b"]" * levels) is harmless


@pytest.mark.parametrize(("digits", "harmless"), [(18, True), (19, False), (40, False)])
def test_nineteen_digits_in_a_row_are_looked_at(digits: int, harmless: bool) -> None:
    assert _is_harmless(b'{"value":%s}' % (b"7" * digits)) is harmless
