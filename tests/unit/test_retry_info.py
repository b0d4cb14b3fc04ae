"""`google.rpc.RetryInfo` in the details of a status, against Google's own messages."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from late.dispatcher.push.retry_info import after_s


def details(seconds: int = 2, nanos: int = 500_000_000, *, others: int = 1) -> bytes:
    """A status that asks to wait, between details that do not."""
    status = Status(code=14, message="later, näher am Abend")
    wait = RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos))
    about = ErrorInfo(reason="BUSY", domain="bank", metadata={"a": "b"})
    packed: list[Any] = [AnyMessage() for _ in range(2 * others + 1)]
    for index, each in enumerate(packed):
        each.Pack(wait if index == others else about)
    status.details.extend(packed)
    return bytes(status.SerializeToString())


def test_the_wait_is_found_among_the_details() -> None:
    assert after_s(details()) == 2.5
    assert after_s(details(-3, 0)) == 0.0
    assert after_s(details(10**9, 1, others=0)) == pytest.approx(1e9)
    assert after_s(Status(code=14, message="later").SerializeToString()) is None


@given(st.binary(max_size=200), st.integers(0, 300))
def test_what_cannot_be_read_says_nothing(noise: bytes, cut: int) -> None:
    whole = details()
    assert after_s(noise) is None
    assert after_s(whole[:cut]) in (None, 2.5, 2.0)
