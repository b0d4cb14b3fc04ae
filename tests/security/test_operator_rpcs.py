"""What each role may ask and change over gRPC: the table of HTTP, with the texts of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from late.api.grpc.operator_values import path_names, rpc_of
from late.api.operator.table import OPERATIONS
from late.control import Control
from late.model.task import Record
from tests.security.test_operator_routes import (
    CHANGES,
    EXPECTED,
    actors,
    as_person,
    filled,
    last_change,
)
from tests.unit.api_kit import Served
from tests.unit.operator_rpc_kit import Rpc, request, rpc
from tests.unit.test_roles import PEOPLE

CODES = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
}
QUERIES: dict[str, dict[str, Any]] = {
    "ListDead": {"queue": "mail"}, "WaitForGroup": {"wait_s": 0},
    "ListTasks": {"queue": "mail", "state": "parked"},
}  # fmt: skip
NAMED = {each.method + " " + each.path: each for each in OPERATIONS}


async def ask(it: Served, call: Rpc, records: list[Record], name: str) -> tuple[str, str]:
    """The status of the call that does what a request of HTTP does, and the text of its error."""
    operation = NAMED[name.partition("?")[0]]
    method = rpc_of(operation)
    place = {"task_id": records[3].task_id, "queue": "mail", "target": "local", "group": "default",
             "schedule": "nightly", "lane": "default"}  # fmt: skip
    fields: dict[str, Any] = {each: place[each] for each in path_names(operation)}
    fields |= {**(EXPECTED[name][1] or {}), **QUERIES.get(method, {})}
    if method == "DeleteGroup":
        fields["group"] = "audit"
    if method == "CompareGroup":
        fields["group"] = "trial"
    if method == "CreateGroup":
        fields["name"] = "another"
    if method == "WaitForGroup":
        fields["until"] = records[3].task_id
    if method == "EditTask":
        fields["payload"] = '{"a":1}'
    if "change" in fields:
        fields["change"] = await asyncio.to_thread(last_change, it.url, fields["change"])
    try:
        await call(method, request(method, fields))
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


@pytest.mark.parametrize("who", PEOPLE)
async def test_every_method_answers_a_role_as_the_table_says(tmp_path: Path, who: str) -> None:
    place = list(PEOPLE).index(who)
    async with filled(tmp_path) as (it, records), rpc(it.rpc.port) as call:
        before = len(actors(it.url))
        as_person(it, PEOPLE[who])
        for name, (expected, _) in EXPECTED.items():
            found = await ask(it, call, records, name)
            assert found[0] == CODES[expected[place]], (who, name, found)
        changed = actors(it.url)[: -before or None]
        assert set(changed) <= {f"oidc:{who}"}
        assert bool(changed) is any(EXPECTED[name][0][place] == 200 for name in CHANGES)


async def test_without_the_option_nobody_changes_anything(tmp_path: Path) -> None:
    async with filled(tmp_path, changes=False) as (it, records), rpc(it.rpc.port) as call:
        before = actors(it.url)
        as_person(it, PEOPLE["admin"])
        for name in CHANGES:
            code, text = await ask(it, call, records, name)
            assert (code, "--api-changes" in text) == ("PERMISSION_DENIED", True), name
        assert actors(it.url) == before


async def test_a_token_of_another_queue_and_one_that_only_looks(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records), rpc(it.rpc.port) as call:
        before = actors(it.url)
        tokens = [
            it.token("payer", "operate", queues=("pay*",)),
            it.token("eve", "view"),
            it.token("shop", "enqueue", "consume"),
        ]
        await it.service.access.load()
        for call.token in (*tokens, None):
            for name in CHANGES:
                code, _ = await ask(it, call, records, name)
                assert code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"), name
        assert actors(it.url)[3:] == before  # the three tokens


async def test_a_token_that_ends_before_its_request_has_come_changes_nothing(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as (it, _), asyncio.timeout(120):
        token = it.token("olga", "operate")
        await it.service.access.load()
        before = actors(it.url)
        admitted, revoked = asyncio.Event(), asyncio.Event()
        admit = it.service.access.admit

        def seen(*args: Any, **options: Any) -> Any:
            caller = admit(*args, **options)
            admitted.set()
            return caller

        async def late_request() -> AsyncIterator[bytes]:
            await revoked.wait()
            yield request("PauseQueue", {"queue": "mail"}).SerializeToString()

        it.service.access.admit = seen  # type: ignore[method-assign]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel:
            pause = channel.stream_unary("/late.v1.Operator/PauseQueue", request_serializer=bytes)
            shown = (("authorization", f"Bearer {token}"),)
            asking = pause(late_request(), metadata=shown)
            await admitted.wait()
            with Control(it.url) as control:
                control.tokens.revoke("olga")
            await it.service.access.load()
            revoked.set()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asking
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert actors(it.url)[1:] == before  # the revocation
