"""Options of a row that this version does not understand: the error says which, and why."""

from __future__ import annotations

import msgspec
import pytest

from late.scheduler.task_state import options_fault
from tests.unit.test_outages import record


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (None, None),
        ('{"priority":5}', None),
        ('{"priority":1.5}', "Expected `int`, got `float` - at `$.priority`"),
        ('{"delay_us":"5"}', "got `str` - at `$.delay_us`"),
        ('{"order":"strict"}', "unknown field `order`"),
        ("{nope", "malformed"),
    ],
)
def test_the_fault_names_the_option(options: str | None, said: str | None) -> None:
    found = options_fault(msgspec.structs.replace(record(1), options=options))
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("its options are not understood here: ")
        assert said in found
