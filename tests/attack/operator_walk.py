"""The operations of operators over HTTP and gRPC, by every role, and with values that nothing has.

Without the role that an operation takes, it answers nothing and changes nothing; and no value is an
error of the server. Events that come in headers are here too: the document cannot describe them.
"""

from __future__ import annotations

import random
import re
import urllib.parse
from typing import Any

import grpc
import msgspec

from late.api.grpc.operator_values import path_names, rpc_of
from late.api.operator.operation import Operation
from late.api.operator.table import OPERATIONS
from late.v1 import operator_pb2
from tests.attack.page_walk import ROLES
from tests.attack.table import Row
from tests.attack.target import Target
from tests.unit.api_kit import Client

IN_PATH = re.compile(r"{([a-z_]+)}")
REFUSED = (401, 403, 404)
PATHS = ("odd", "..", "%2e%2e", "a%00b", "%ff", "9" * 200, "%F0%9F%92%A9", "' or 1=1 --")
VALUES: tuple[Any, ...] = (
    None, 10**20, -1, 2**63, 1.5, "9" * 300, "a\0b", "", "..", [], {}, [[]], True, ["a\0b"],
    {"\0": "\0"}, "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+14:00",
)  # fmt: skip
CALL_S = 40.0
REFUSED_CALLS = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,  # a message without what it must have is looked at first
}
BROKEN = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/attack", "ce-type": "odd"}
TEXTS = (
    "", " ", "%", "%zz", "%00", "%ff", "%C3", "%F0%9F%92%A9", '"', '"a', '"a\\', '"a\\""', "\xe9",
    "9" * 5_000, "%" * 5_000, '"' + "\\\\" * 2_500 + '"', "-1", "1e9", "9" * 20, "2026-05-01",
    "00-0-0-00", "../..", "a\tb", "a,b", "%0d%0aX: y",
)  # fmt: skip


def run(target: Target, seed: int = 1) -> list[Row]:
    return [_http(target), _values(target), _rpc(target, random.Random(seed)), _events(target)]


def may(operation: Operation, role: str) -> bool | None:
    """Tell whether a token of `role` may do the operation; None if that depends on its queue."""
    if role == "narrow":
        return False if operation.rule.reach == "all" else None
    return role in ("all", "operate") or role == operation.rule.role == "view"


def _address(operation: Operation, text: str = "odd") -> str:
    return IN_PATH.sub(text, operation.path)


def _http(target: Target) -> Row:
    row = target.row("operations over HTTP, each role, of names that are and are not there")
    with target.watched(row):
        for role in ROLES:
            call = Client(target.http, target.tokens.get(role))
            for operation in OPERATIONS:
                for path in PATHS:
                    body = None if operation.method in ("GET", "DELETE") else {}
                    where = _address(operation, urllib.parse.quote(path, safe="%"))
                    status = call.now(operation.method, where, body).status
                    # What is no address at all is looked up before anybody is asked who it is.
                    taken = may(operation, role) is False and status not in (*REFUSED, 400, 405)
                    wrong = f"{role or 'nobody'}: {operation.method} {where}: {status}"
                    row.add(str(status), wrong=wrong if status >= 500 or taken else None)
    return row


def _values(target: Target) -> Row:
    row = target.row("operations over HTTP, with values that no field can have")
    call = Client(target.http, target.tokens["all"])
    with target.watched(row):
        for operation in OPERATIONS:
            where = _address(operation)
            for field in msgspec.structs.fields(operation.takes):
                for value in VALUES:
                    if operation.method == "GET":
                        # A query has texts alone, and a wait would only take its time.
                        text = value if isinstance(value, str) else msgspec.json.encode(value)
                        query = urllib.parse.urlencode({field.encode_name: text})
                        status = call.now("GET", f"{where}?{query}").status
                    else:
                        raw = msgspec.json.encode({field.encode_name: value})
                        kind = {"Content-Type": "application/json"}
                        status = call.now(operation.method, where, raw=raw, headers=kind).status
                    wrong = f"{operation.method} {where} {field.name}={value!r:.60}: {status}"
                    row.add(str(status), wrong=wrong if status >= 500 else None)
    return row


def _rpc(target: Target, rng: random.Random) -> Row:
    """Messages with names alone by each role; then random ones by who may do everything."""
    row = target.row("operations over gRPC, each role, and random messages")
    with target.watched(row), grpc.insecure_channel(f"127.0.0.1:{target.rpc}") as channel:
        for operation in OPERATIONS:
            call = channel.unary_unary(f"/late.v1.Operator/{rpc_of(operation)}")
            for role in ROLES:
                code = _code(call, _named(operation), target.tokens.get(role))
                taken = may(operation, role) is False and code not in REFUSED_CALLS
                told = f"{role or 'nobody'}: {rpc_of(operation)}: {code.name}"
                row.add(code.name, wrong=told if code in BROKEN or taken else None)
            for _ in range(20):
                message = rng.randbytes(rng.randrange(1, 60))
                code = _code(call, message, target.tokens["all"])
                # INTERNAL is gRPC's own word for a message that it cannot read.
                told = f"{rpc_of(operation)} {message.hex()}: {code.name}"
                wrong = code in BROKEN - {grpc.StatusCode.INTERNAL}
                row.add(code.name, wrong=told if wrong else None)
    return row


def _named(operation: Operation) -> bytes:
    """The request with the names of its path, and nothing else."""
    kind = getattr(operator_pb2, f"{rpc_of(operation)}Request")
    message: bytes = kind(**dict.fromkeys(path_names(operation), "odd")).SerializeToString()
    return message


def _code(call: Any, message: bytes, token: str | None) -> grpc.StatusCode:
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    try:
        call(message, metadata=metadata, timeout=CALL_S)
    except grpc.RpcError as error:
        found: grpc.StatusCode = error.code()
        return found
    return grpc.StatusCode.OK


def _events(target: Target) -> Row:
    row = target.row("events in headers and in batches: odd texts, twice, without, of other queues")
    call, narrow = (Client(target.http, target.tokens[name]) for name in ("all", "narrow"))
    names = (
        *(*EVENT, "ce-subject", "ce-partitionkey", "ce-latedelay", "ce-traceparent", "ce-data"),
        *("ce-", "ce-datacontenttype", "ce-expirytime", "ce-late", "CE-ID", "ce-a-b"),
    )
    with target.watched(row):
        for name in names:
            for text in TEXTS:
                sent = {**EVENT, name: text.encode("latin-1").decode("latin-1")}
                status = call.now("POST", "/v1/queues/odd/tasks", {}, headers=sent).status
                wrong = f"{name}: {text[:40]!r}: {status}" if status >= 500 else None
                row.add(str(status), wrong=wrong)
        batch = {"Content-Type": "application/cloudevents-batch+json"}
        event = {name.removeprefix("ce-"): text for name, text in EVENT.items()}
        for events in ([], [event] * 3, [event] * 1_500, [[]], [event, None], {}, [{}] * 5_000,
                       [{**event, "data": {"a" * 500: i}} for i in range(9)]):  # fmt: skip
            raw = msgspec.json.encode(events)
            for queue in ("odd", "..", "a%00b", "%ff", "x" * 300, ""):
                where = f"/v1/tasks?queue={queue}"
                status = call.now("POST", where, raw=raw, headers=batch).status
                told = f"{len(events)} events to {queue[:20]}: {status}"
                row.add(str(status), wrong=told if status >= 500 else None)
        # A token of one queue, whose batch is for another: nothing of it may be put.
        raw = msgspec.json.encode([{**event, "id": "narrow"}])
        for where in ("/v1/tasks?queue=odd", "/v1/tasks", "/v1/tasks?queue=other&queue=odd"):
            status = narrow.now("POST", where, raw=raw, headers=batch).status
            row.add(str(status), wrong=None if status in (403, 404) else f"{where}: {status}")
    return row
