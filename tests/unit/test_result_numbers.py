"""A result with a number that JSON has not is refused, as an argument is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from late.errors import DecodeError
from late.payload import values


@dataclass
class Ratio:
    of: float
    note: str | None = None


@pytest.mark.parametrize(
    "returned",
    [math.nan, math.inf, [1.0, -math.inf], {"a": [{"b": math.nan}]}, Ratio(math.nan), (math.nan,)],
)
def test_it_is_refused(returned: Any) -> None:
    with pytest.raises(DecodeError, match=r"(nan|inf) is not a number") as error:
        values.result(returned)
    assert error.value.reason == "invalid_result"


@pytest.mark.parametrize("returned", [None, 1.5, {"a": None}, Ratio(0.5), "null", [None, 2.0]])
def test_null_and_numbers_are_kept(returned: Any) -> None:
    assert values.result(returned)
