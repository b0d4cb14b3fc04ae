"""Which channel a call takes, without a network."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("google.cloud.spanner_v1", reason="no google-cloud-spanner")

import grpc

from late.store.spanner import grpc_channels as spanner_channels
from late.store.spanner.grpc_calls import GrpcCall, Stamp
from late.store.spanner.grpc_channels import AVOID_S, ChannelPool

State = grpc.ChannelConnectivity
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


class Channel:
    """Says of its connection what the test says, and notes how it ends."""

    def __init__(self, ended: list[str]) -> None:
        self._ended = ended

    def subscribe(self, callback: Any, try_to_connect: bool) -> None:
        self.tell = callback

    def unsubscribe(self, callback: Any) -> None:
        self._ended.append("unwatched")

    def close(self) -> None:
        self._ended.append("closed")


@pytest.fixture
def ended() -> list[str]:
    """What was done to end the channels, in order."""
    return []


@pytest.fixture
def channels(ended: list[str]) -> list[Any]:
    return [Channel(ended), Channel(ended)]


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
    thread.join(120)
    assert not thread.is_alive()


def test_only_the_same_request_again_counts_as_a_repeat(pool: ChannelPool) -> None:
    """Once more the same message, or another one of the same id with a higher attempt."""

    def retries(request: object, identity: str | None = None) -> int:
        metadata = [("x-goog-spanner-request-id", identity)] if identity else None
        return GrpcCall(pool, "/Spanner/Read", request, b"", metadata).retries

    first, other = object(), object()
    assert [retries(first), retries(first), retries(first), retries(other)] == [0, 1, 2, 0]
    assert [retries(object(), identity) for identity in ("a.1", "a.2", "b.1", "b.3")] == [
        0,
        1,
        0,
        2,
    ]


def test_a_channel_makes_the_callable_of_a_method_once(
    pool: ChannelPool, channels: list[Any]
) -> None:
    channels[0].unary_unary = channels[1].unary_unary = lambda method: [method, "one"]
    channels[0].unary_stream = channels[1].unary_stream = lambda method: [method, "several"]
    member = pool.take()
    assert member.call("/Read", stream=False) == ["/Read", "one"]
    assert member.call("/Read", stream=True) == ["/Read", "several"]
    assert member.call("/Read", stream=False) is member.call("/Read", stream=False)


def test_a_dead_peer_is_given_up_after_the_stated_time() -> None:
    options = dict(spanner_channels.OPTIONS)
    names = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
    asked_s = [options[f"grpc.{name}"] / 1000 for name in names]
    given_up_s = spanner_channels.KEEPALIVE_TIMEOUT_S
    assert asked_s == [spanner_channels.KEEPALIVE_TIME_S, given_up_s, given_up_s]


def test_none_is_closed_before_all_are_unwatched(pool: ChannelPool, ended: list[str]) -> None:
    """Else each close would wait for gRPC's watcher of that channel, up to 0.2 s one by one."""
    pool.close()
    assert ended == ["unwatched", "unwatched", "closed", "closed"]
