"""Bytes that are no request: the answer is an error in JSON like any other, and the end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.unit.api_kit import served

ATTACKS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a method": b"GE\0T / HTTP/1.1\r\n\r\n",
    "a version": b"GET / HTTP/9.9\r\n\r\n",
    "a path": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a size": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    "a header": b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
    "a long head": b"GET / HTTP/1.1\r\nA: " + b"b" * 40_000,
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_is_no_request_is_told_in_json(tmp_path: Path, attack: str) -> None:
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(ATTACKS[attack])
        async with asyncio.timeout(120):
            answer = await reader.read()  # to the end: the connection is closed
        writer.close()
        found = [part for part in answer.split(b"HTTP/1.1 ") if b" 400 " in b" " + part[:12]]
        assert len(found) == 1, answer
        head, _, body = found[0].partition(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        assert headers[b"content-type"] == b"application/json"
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert int(headers[b"content-length"]) == len(body)
        said = json.loads(body)
        assert (said["error"], said.keys()) == ("bad_request", {"error", "message"})
        assert (await it.call("GET", "/livez")).status == 200
