"""gRPC that is none: odd messages, odd frames, bombs and resets, of strangers and of callers.

Every call ends with a status or a reset, and never with an error of the server's own.
"""

from __future__ import annotations

import random
import socket
import struct
import zlib
from collections.abc import Iterator

from late.v1 import queue_pb2
from tests.attack.table import Row
from tests.attack.target import MIB, Target
from tests.security.http2 import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    Http2,
    frame,
    header,
)

METHODS = ("Enqueue", "Stats", "Consume", "Nothing", "")
MESSAGES = 600
FRAMES = 200
OK, INTERNAL, UNKNOWN = 0, 13, 2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def prefixed(body: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return bytes((flag,)) + (size % 2**32).to_bytes(4, "big") + body


def gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(body) + packer.flush()


def bomb(mib: int) -> bytes:
    """So many MiB of zeros, packed."""
    packer, zeros = zlib.compressobj(1, wbits=31), bytes(MIB)
    return b"".join(packer.compress(zeros) for _ in range(mib)) + packer.flush()


def messages(rng: random.Random) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Give the data of calls, with the kind of each and its further metadata."""
    new = queue_pb2.NewTask(queue="odd", name="x", payload=b"{}", headers={"a": "b"})
    many = queue_pb2.EnqueueRequest(tasks=[new] * 3).SerializeToString()
    subscribe = queue_pb2.ConsumeRequest(
        subscribe=queue_pb2.Subscribe(queues=["odd"])
    ).SerializeToString()
    for number in range(MESSAGES):
        good = rng.choice((many, subscribe))
        match number % 8:
            case 0:
                yield "random bytes", rng.randbytes(rng.randrange(200)), {}
            case 1:
                yield "random message", prefixed(rng.randbytes(rng.randrange(400))), {}
            case 2:
                cut = prefixed(good)
                yield "truncated message", cut[: rng.randrange(1, len(cut))], {}
            case 3:
                flipped = bytearray(good)
                for _ in range(rng.randrange(1, 6)):
                    flipped[rng.randrange(len(flipped))] = rng.randrange(256)
                yield "flipped bytes", prefixed(bytes(flipped)), {}
            case 4:
                huge = rng.choice((2**32 - 1, 2**31, 2**30, 10 * MIB, len(good) + 1))
                yield "huge length", prefixed(good, length=huge), {}
            case 5:
                wrong = rng.choice((b"\x0a\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * 10,
                                    b"\x0b" * 300,
                                    b"\x12\x03\xff\xfe\xfd",
                                    b"\x0a\x02\x0a\x00" * 5_000))  # fmt: skip
                yield "wrong types", prefixed(wrong), {}
            case 6:
                kind = rng.choice(("gzip", "deflate", "identity", "br", "snappy", "\t"))
                packed = rng.choice((gzip(good), good, rng.randbytes(50), gzip(good)[:-4]))
                yield "compressed", prefixed(packed, flag=1), {"grpc-encoding": kind}
            case _:
                odd = {
                    rng.choice(("grpc-timeout", "content-type", "te", "grpc-accept-encoding",
                                "x-bin", "authorization2", "traceparent")):
                    rng.choice(("", "99999999999n", "-1S", "1H1H", "application/json", "A" * 120,
                                "%%%"))
                }  # fmt: skip
                yield "odd metadata", prefixed(good), odd


def frames(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Give what follows the preface of a connection, with its kind."""
    for number in range(FRAMES):
        match number % 5:
            case 0:
                yield "random bytes", rng.randbytes(rng.randrange(1, 3_000))
            case 1:
                some = (
                    frame(rng.randrange(16), rng.randrange(256), rng.randrange(9), rng.randbytes(n))
                    for n in (rng.randrange(60) for _ in range(20))
                )
                yield "random frames", b"".join(some)
            case 2:
                odd = b"".join(
                    struct.pack(">HI", rng.randrange(10), rng.randrange(2**32)) for _ in range(200)
                )
                yield "settings", frame(SETTINGS, 0, 0) + frame(SETTINGS, 0, 0, odd)
            case 3:
                block = rng.randbytes(rng.randrange(1, 300))
                yield "bad HPACK", frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block)
            case _:
                part = frame(CONTINUATION, 0, 1, b"\0\1a\1b" * 20)
                yield "endless head", frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1) + part * 400


def run(target: Target, seed: int = 1) -> list[Row]:
    return [
        _calls(target, random.Random(seed)),
        _frames(target, random.Random(seed)),
        metadata(target),
        bombs(target),
        resets(target),
    ]


def _calls(target: Target, rng: random.Random) -> Row:
    row = target.row("gRPC calls: random, torn, flipped, huge, wrong types, compressed, metadata")
    with target.watched(row):
        for kind, data, metadata in messages(rng):
            path = f"/late.v1.Queue/{rng.choice(METHODS)}"
            whose = rng.choice(("", "", "all", "view", "narrow"))
            if whose:
                metadata = {**metadata, "authorization": f"Bearer {target.tokens[whose]}"}
            client = Http2(target.rpc)
            try:
                stream = client.call(path, **metadata)
                client.send(stream, data, end=True)
                status = client.status(stream)
                answer = client.answers.get(stream)
            finally:
                client.close()
            outcome = f"status {status}" if status is not None else "reset"
            wrong = None
            if status is None and answer is None and not client.closed:
                outcome, wrong = "hangs", f"{kind} to {path}: no answer"
            elif status == UNKNOWN or (
                status == INTERNAL and b"error of the server" in (answer or b"")
            ):
                wrong = f"{kind} to {path}: {answer!r}"
            elif status == OK and not whose:
                wrong = f"{kind} to {path}: taken of a stranger"
            row.add(outcome, wrong=wrong)
    return row


def _frames(target: Target, rng: random.Random) -> Row:
    row = target.row("HTTP/2 frames: random, settings, bad HPACK, heads without end")
    with target.watched(row):
        for _, data in frames(rng):
            with socket.create_connection(("127.0.0.1", target.rpc), timeout=2) as one:
                outcome = "ended"
                try:
                    one.sendall(PREFACE + data)
                    one.shutdown(socket.SHUT_WR)
                    while one.recv(65_536):
                        pass
                except TimeoutError:
                    outcome = "left open"
                except OSError:
                    outcome = "reset"
            row.add(outcome, wrong="no end" if outcome == "left open" else None)
        row.wrong += _stats(target)
    return row


def metadata(target: Target, mib: int = 64) -> Row:
    """A call whose metadata does not end. gRPC keeps up to 24 MiB of it for each connection, so
    this does not hold for many at once (docs/security.md)."""
    row = target.row(f"metadata of a call without end, {mib} MiB on one connection")
    part = frame(CONTINUATION, 0, 1, b"".join(header(f"x-{n}", "a" * 100) for n in range(100)))
    with target.watched(row):
        with socket.create_connection(("127.0.0.1", target.rpc), timeout=10) as one:
            outcome = "dropped unread"
            try:
                one.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1))
                for _ in range(mib * MIB // len(part)):
                    one.sendall(part)
            except OSError:
                outcome = "cut off"
        row.add(outcome)
        row.wrong += _stats(target)
    return row


def bombs(target: Target) -> Row:
    """Messages that are small on the wire and large when unpacked."""
    row = target.row("gzip bombs over gRPC (10 MiB to 1 GiB) and over HTTP")
    with target.watched(row):
        packed = gzip(bytes(MIB))
        for size in (10, 64, 256, 1_024):
            data = prefixed(bomb(size), flag=1)
            for token in ("", target.tokens["all"]):
                client = Http2(target.rpc)
                try:
                    more = {"authorization": f"Bearer {token}"} if token else {}
                    stream = client.call(
                        "/late.v1.Queue/Enqueue", **{"grpc-encoding": "gzip"}, **more
                    )
                    client.send(stream, data, end=True)
                    status = client.status(stream)
                finally:
                    client.close()
                row.add(f"status {status}" if status is not None else "reset",
                        wrong="taken" if status == OK else None)  # fmt: skip
        for encoding in ("gzip", "deflate", "br", "gzip, gzip"):
            head = (
                f"POST /v1/queues/odd/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                f"{target.tokens['all']}\r\nContent-Type: application/json\r\nContent-Encoding: "
                f"{encoding}\r\nContent-Length: {len(packed)}\r\nConnection: close\r\n\r\n"
            ).encode()
            with socket.create_connection(("127.0.0.1", target.http), timeout=10) as one:
                one.sendall(head + packed)
                answer = one.recv(65_536)
            status = int(answer.split()[1])
            row.add(
                f"{status}", wrong=None if 400 <= status < 500 else f"HTTP {encoding}: {status}"
            )
    return row


def resets(target: Target, connections: int = 4, calls: int = 5_000) -> Row:
    """Calls that are reset as soon as they are begun, as fast as they can be sent."""
    row = target.row(f"HTTP/2 rapid resets, {connections} connections")
    with target.watched(row):
        for _ in range(connections):
            client = Http2(target.rpc)
            try:
                for _ in range(calls):
                    stream = client.call("/late.v1.Queue/Stats")
                    client._send(frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")))
                    if client.closed:
                        break
                    row.inputs += 1
            finally:
                client.close()
            row.outcomes["cut off" if client.closed else "all taken"] += 1
        row.wrong += _stats(target)
    return row


def _stats(target: Target) -> list[str]:
    """Ask as a caller; the reasons why that failed."""
    client = Http2(target.rpc)
    try:
        stream = client.call("/late.v1.Queue/Stats", authorization=f"Bearer {target.tokens['all']}")
        client.send(stream, prefixed(b""), end=True)
        for _ in range(20):
            status = client.status(stream)
            if status is not None:
                break
        return [] if status == OK else [f"a caller afterwards: {status}"]
    finally:
        client.close()
