"""What every error of another system goes through."""

from __future__ import annotations

import pytest

from late.errors import causes
from late.outbox.statements import GoogleSql
from late.schema.engine import _of_spanner


def ring() -> Exception:
    """As Google's client makes one, when it raises an error again that it has kept."""
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.timeout(10)
def test_a_ring_of_causes_has_an_end() -> None:
    assert [str(cause) for cause in causes(ring())] == ["first", "second"]
    assert not GoogleSql().is_schema_error(ring())
    assert _of_spanner(ring()) is None


def test_what_sqlalchemy_wraps_is_a_cause() -> None:
    error, below = RuntimeError("the wrapper's"), RuntimeError("the driver's")
    error.orig = below  # type: ignore[attr-defined]
    below.__cause__ = ValueError("the client's")
    assert [str(cause) for cause in causes(error)] == [
        "the wrapper's",
        "the driver's",
        "the client's",
    ]
