"""The producers of the examples, against a running server: Node, TypeScript and Go."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.consumers.languages import EXAMPLES, command, needs_go
from tests.integration.serve_kit import serving
from tests.node import NODE, needs_node
from tests.support import sqlite
from tests.unit.api_kit import served


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("node", marks=needs_node),
        "typescript",
        pytest.param("go", marks=needs_go),
    ],
)
def producer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of the producer in each language."""
    return command(request.param, "producer", tmp_path_factory.mktemp("producer"))


async def put(
    producer: list[str], url: str, *arguments: str, **environment: str
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *producer,
        *arguments,
        env={"PATH": os.environ["PATH"], "LATE_URL": url, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_it_puts_a_task_that_a_consumer_gets(producer: list[str], tmp_path: Path) -> None:
    database = sqlite.database(tmp_path / "queue.db")
    async with serving(database) as it:
        url = f"http://127.0.0.1:{it.call.port}"
        code, out, err = await put(producer, url, "payments", "charge", '{"trip": 7}', "trip-7")
        assert (code, err) == (0, "")
        first = json.loads(out)
        assert first["created"] is True
        (task,) = await it.receive()
        assert (task["task_id"], task["payload"]) == (first["task_id"], {"trip": 7})
        code, out, _ = await put(producer, url, "payments", "charge", '{"trip": 7}', "trip-7")
        assert (code, json.loads(out)) == (0, {**first, "created": False})
        assert (await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})).status == 204
        code, _, err = await put(producer, url, "payments", "no good")
        assert (code, "400 invalid_task" in err) == (1, True)


@needs_node
async def test_it_runs_by_whatever_path_it_is_called(tmp_path: Path) -> None:
    link = tmp_path / "a link.mjs"
    link.symlink_to(EXAMPLES / "node" / "producer.mjs")
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(link), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120):
        _, err = await process.communicate()
    assert (process.returncode, err.startswith(b"usage: ")) == (2, True)


async def test_it_shows_its_token_and_says_what_it_was_told(
    producer: list[str], tmp_path: Path
) -> None:
    async with served(tmp_path, auth=True) as it:
        good = it.token("node", "enqueue")
        await it.service.access.load()
        url = f"http://127.0.0.1:{it.call.port}"
        code, _, err = await put(producer, url, "payments", "charge")
        assert (code, "401 unauthenticated" in err) == (1, True)
        code, _, _ = await put(producer, url, "payments", "charge", LATE_TOKEN=good)
        assert code == 0


async def test_it_puts_again_when_the_answer_was_lost(producer: list[str], tmp_path: Path) -> None:
    """The first connection ends without an answer, as if the server had died. The task has ended
    before it is put again."""
    async with serving(sqlite.database(tmp_path / "queue.db")) as it:
        cut: list[int] = []

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(size)
            found = await it.call("POST", head.split(b" ")[1].decode(), raw=body)
            cut.append(found.status)
            if len(cut) == 1:
                (task,) = await it.receive()
                await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})
            else:
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                writer.write(
                    head + f"Content-Length: {len(found.body)}\r\n\r\n".encode() + found.body
                )
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            code, out, err = await put(producer, f"http://127.0.0.1:{port}", "payments", "charge")
        assert (code, err) == (0, "")
        assert cut == [201, 200]  # written once, found again
        assert json.loads(out)["created"] is False


async def test_it_says_at_once_what_no_other_try_would_change(producer: list[str]) -> None:
    async with asyncio.timeout(20):
        code, _, err = await put(producer, "http//127.0.0.1:7280", "payments", "charge")
    assert (code, "URL" in err) == (1, True)
    async with answering("404 Not Found", "<html>") as (url, tries):
        code, _, err = await put(producer, url, "payments", "charge")
    assert (code, "404 no_word: the answer is not from late" in err) == (1, True)
    assert len(tries) == 1


async def test_it_puts_again_where_a_proxy_has_no_server(producer: list[str]) -> None:
    async with answering("502 Bad Gateway", "<html>", times=2) as (url, tries):
        code, out, _ = await put(producer, url, "payments", "charge")
    assert (code, json.loads(out)["task_id"]) == (0, "t")
    assert len(tries) == 3


@asynccontextmanager
async def answering(
    status: str, body: str, times: int = 1_000
) -> AsyncIterator[tuple[str, list[int]]]:
    """Answer so many requests with this, then as a server of late. Yield its URL and the tries."""
    tries: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(size)
        tries.append(1)
        line, text = (status, body) if len(tries) <= times else ("200 OK", '{"task_id": "t"}')
        head_of = f"HTTP/1.1 {line}\r\nConnection: close\r\nContent-Length: {len(text)}"
        writer.write(f"{head_of}\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", tries
