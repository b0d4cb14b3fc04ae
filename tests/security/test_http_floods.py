"""Floods over HTTP: each connection ends, and nothing is kept of what it sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from late.api.http.protocol import HEAD_BYTES, HEADER_LINES, PIPELINED, HttpProtocol
from tests.unit.api_kit import Served, served

MIB = 1024 * 1024
SENT_MAX = 16 * MIB
"""The buffers of both sockets, with room to spare."""
CHUNKED = (
    b"POST /v1/queues/payments/tasks HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def flood(it: Served, begin: bytes, part: bytes) -> tuple[int, bytes]:
    """Send `begin` and then `part` until the server ends it; return the bytes and the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
    answer = asyncio.ensure_future(reader.read(65_536))
    sent = 0
    async with asyncio.timeout(120):
        try:
            writer.write(begin)
            while sent < 2 * SENT_MAX:
                writer.write(part)
                await writer.drain()
                sent += len(part)
        except ConnectionError:
            pass
    writer.close()
    try:
        return sent, await answer
    except ConnectionError:
        return sent, b""


@pytest.mark.parametrize("auth", [True, False], ids=["refused", "admitted"])
@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"0\r\n", b"x-trailer: aaaaaaaa\r\n" * 3_000),
        (b"0\r\nx-trailer: ", b"a" * 65_536),
        (b"2\r\n{}\r\n0\r\n", b"x-trailer: aaaaaaaa\r\n" * 3_000),
    ],
    ids=["many", "one", "after a body"],
)
async def test_trailers_are_bounded_like_the_head(
    tmp_path: Path, auth: bool, begin: bytes, part: bytes
) -> None:
    async with served(tmp_path, auth=auth) as it:
        sent, answer = await flood(it, CHUNKED + begin, part)
        assert sent < SENT_MAX
        assert not answer or b" 401 " in answer or b" 400 " in answer
        assert (await it.call("GET", "/livez")).status == 200


async def test_small_trailers_change_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        body = b'{"name":"charge"}'
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        for _ in range(2):
            # One byte at a time, so that each state of the parser lasts over several reads.
            for byte in CHUNKED + b"%x\r\n%s\r\n0\r\ncontent-type: text/html\r\n\r\n" % (
                len(body),
                body,
            ):
                writer.write(bytes((byte,)))
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201 ")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        writer.close()


async def test_a_large_chunk_is_no_trailer(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        body = b'{"name":"charge","payload":{"x":"' + b"a" * 8 * HEAD_BYTES + b'"}}'
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(CHUNKED + b"%x\r\n" % len(body))
        await writer.drain()
        writer.write(body + b"\r\n0\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 201 ")
        writer.close()


async def test_requests_in_one_piece_keep_their_heads(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        one = (
            b"POST /v1/queues/payments/tasks HTTP/1.1\r\nHost: localhost\r\n"
            b'Content-Type: application/json\r\nContent-Length: 17\r\n\r\n{"name":"charge"}'
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(
            one * 3 + b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        async with asyncio.timeout(120):
            answers = await reader.read()
        writer.close()
        assert answers.count(b"HTTP/1.1 201 ") == 3
        assert answers.count(b"HTTP/1.1 200 ") == 1


async def said(it: Served, sent: bytes) -> bytes:
    """Send it all at once, and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
    writer.write(sent)
    async with asyncio.timeout(120):
        answers = await reader.read()
    writer.close()
    return answers


async def test_requests_that_wait_on_a_connection_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = []
    begun = HttpProtocol.on_message_begin

    def begin(self: HttpProtocol) -> None:
        waiting.append(len(self.pipeline))
        begun(self)

    monkeypatch.setattr(HttpProtocol, "on_message_begin", begin)
    one = b"GET / HTTP/1.1\r\n\r\n"
    async with served(tmp_path) as it:
        _, answer = await flood(it, b"", one * 3_000)
        assert b" 400 " in answer
        assert b"Too many requests wait" in answer
        assert max(waiting) <= PIPELINED
        assert len(waiting) <= PIPELINED + 2, "nothing of the rest was read"
        # As many as may wait are answered, in their order.
        last = b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"
        answers = await said(it, one * PIPELINED + last)
        assert answers.count(b"HTTP/1.1 ") == PIPELINED + 1
        assert answers.rfind(b"HTTP/1.1 200 ") == answers.rfind(b"HTTP/1.1 ")


async def test_a_head_has_so_many_lines(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        first = b"GET /livez HTTP/1.1\r\nConnection: close\r\n"
        most = HEADER_LINES - 1
        assert (await said(it, first + b"a:\r\n" * most + b"\r\n")).startswith(b"HTTP/1.1 200 ")
        answer = await said(it, first + b"a:\r\n" * (most + 2))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"too many lines" in answer


async def test_a_half_head_behind_a_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.http.protocol.HEADER_S", 0.2)
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HTTP/1.1\r\n")
        async with asyncio.timeout(120):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"1\r\n \r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_a_dripped_body_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part comes in time, and the whole does not: an answer, and then the end."""
    monkeypatch.setattr("late.api.limits.BODY_S", 0.3)
    monkeypatch.setattr("late.api.http.protocol.BODY_S", 0.3)
    monkeypatch.setattr("late.api.http.protocol.LINGER_S", 0.3)
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(CHUNKED)
        dripping = asyncio.ensure_future(drip(writer))
        async with asyncio.timeout(120):
            assert b" 400 " in await reader.readline()
            assert b"did not come in time" in await reader.readuntil(b"}")
            with pytest.raises(ConnectionError):
                await dripping
        writer.close()
