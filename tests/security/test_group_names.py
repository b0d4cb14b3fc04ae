"""Texts that are no name of a group or of a task: refused wherever one enters by the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from late.v1 import queue_pb2, queue_pb2_grpc
from tests.unit.api_kit import served

GROUPS = ("a b", "a\0b", "<b>", "a/b", "ä", "g" * 129, "g" * 5_000, "a\nb", "default ", "*")
NAMES = ("invalid_task", "bad_request")
"""The error of what is no name, and of what is too long for the schema."""


async def test_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for group in GROUPS:
            asked = f"group={quote(group, safe='')}"
            answers = [
                await it.call("GET", f"/v1/queues?{asked}"),
                await it.call("GET", f"/v1/queues/payments?{asked}"),
                await it.call("POST", "/v1/queues/payments/receive", {"group": group}),
            ]
            for answer in answers:
                assert (answer.status, answer.json["error"]) == (400, "invalid_task"), group
                assert len(answer.body) < 400, "the text is not sent back whole"


async def test_over_grpc(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as it,
        grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel,
    ):
        stub = queue_pb2_grpc.QueueStub(channel)
        for group in GROUPS:
            subscribe = queue_pb2.Subscribe(queues=["payments"], group=group)
            stream = stub.Consume(iter([queue_pb2.ConsumeRequest(subscribe=subscribe)]))
            calls: list[Any] = [stub.Stats(queue_pb2.StatsRequest(group=group)), stream.read()]
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, group


async def test_a_consumer_asks_for_names_of_tasks_only(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as it,
        grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel,
    ):
        stub = queue_pb2_grpc.QueueStub(channel)
        for name in ("", *(each for each in GROUPS if "default" not in each)):
            asked = {"names": ["charge", name], "wait_s": 0}
            answer = await it.call("POST", "/v1/queues/payments/receive", asked)
            assert (answer.status, answer.json["error"]) == (400, NAMES[len(name) > 128]), name
            subscribe = queue_pb2.Subscribe(queues=["payments"], names=["charge", name])
            stream = stub.Consume(iter([queue_pb2.ConsumeRequest(subscribe=subscribe)]))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, name


async def test_a_group_that_is_not_there_is_no_error_of_its_name(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        taken = await it.call("POST", "/v1/queues/payments/receive", {"group": "audit"})
        assert (taken.status, taken.json["error"]) == (404, "not_found")
        assert (await it.call("GET", "/v1/queues/payments?group=audit")).status == 200
        assert (await it.call("GET", "/v1/queues/payments?group=")).status == 200
