"""Which channel a call takes, without a network."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("google.cloud.spanner_v1", reason="no google-cloud-spanner")

import grpc

from late.events import RPC, Emitter, Event
from late.store.spanner import grpc_channels as spanner_channels
from late.store.spanner.grpc_calls import GrpcCall, Stamp
from late.store.spanner.grpc_channels import AVOID_S, ChannelPool

State = grpc.ChannelConnectivity
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


class Channel:
    """Says of its connection what the test says."""

    def subscribe(self, callback: Any, try_to_connect: bool) -> None:
        self.tell = callback

    def unsubscribe(self, callback: Any) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def channels() -> list[Any]:
    return [Channel(), Channel()]


@pytest.fixture
def pool(channels: list[Any]) -> ChannelPool:
    return ChannelPool(channels, stamp=Stamp(3, "test"))


def taken(pool: ChannelPool, channels: list[Any], code: grpc.StatusCode = OK) -> int:
    member = pool.take()
    pool.give_back(member, code)
    return channels.index(member.channel)


def test_calls_spread_over_healthy_channels(pool: ChannelPool, channels: list[Any]) -> None:
    members = [pool.take() for _ in range(6)]
    assert [member.in_flight for member in dict.fromkeys(members)] == [3, 3]


def test_a_connection_that_is_told_of_late_does_not_end_a_rest(
    pool: ChannelPool, channels: list[Any]
) -> None:
    bad = taken(pool, channels, UNAVAILABLE)
    channels[bad].tell(State.READY)
    assert {taken(pool, channels) for _ in range(8)} == {1 - bad}


def test_a_channel_is_used_again_after_its_rest(
    pool: ChannelPool, channels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(spanner_channels.time, "monotonic", lambda: now[0])
    bad = taken(pool, channels, UNAVAILABLE)
    now[0] += AVOID_S + 0.01
    assert bad in {taken(pool, channels) for _ in range(8)}


def test_a_channel_without_a_connection_is_left_alone_until_it_has_one(
    pool: ChannelPool, channels: list[Any]
) -> None:
    channels[0].tell(State.TRANSIENT_FAILURE)
    channels[0].tell(State.CONNECTING)
    assert {taken(pool, channels) for _ in range(8)} == {1}
    channels[0].tell(State.READY)
    assert {taken(pool, channels) for _ in range(8)} == {0, 1}


def test_where_all_are_bad_one_is_used_all_the_same(pool: ChannelPool, channels: list[Any]) -> None:
    for channel in channels:
        channel.tell(State.TRANSIENT_FAILURE)
    assert taken(pool, channels) in (0, 1)


def test_a_stream_may_end_while_another_call_begins(pool: ChannelPool) -> None:
    """The garbage collection ends one that was left half read, in whatever thread it runs."""
    member = pool.take()

    def collected_inside() -> None:
        with pool._lock:
            pool.give_back(member, OK)

    thread = threading.Thread(target=collected_inside, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_a_call_that_fails_before_its_answer_has_received_nothing(channels: list[Any]) -> None:
    heard: list[Mapping[str, Any]] = []

    def listen(event: Event, values: Mapping[str, Any]) -> None:
        assert event is RPC
        heard.append(values)

    emitter = Emitter()
    emitter.subscribe(listen)
    pool = ChannelPool(channels, stamp=Stamp(3, "test"), emitter=emitter)
    call = GrpcCall(pool, "/google.spanner.v1.Spanner/Commit", object(), b"asked", None)
    call.end(UNAVAILABLE)
    call.end(OK)
    [told] = heard
    assert (told["sent_bytes"], told["received_bytes"], told["code"]) == (5, 0, "UNAVAILABLE")
