"""The producer in Node, against a running server."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from late.schema import migrate
from tests.integration.serve_kit import serving
from tests.node import NODE, needs_node
from tests.unit.api_kit import served

PRODUCER = Path(__file__).parents[2] / "examples" / "node" / "producer.mjs"
pytestmark = needs_node


async def node(url: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(PRODUCER),
        *arguments,
        env={"PATH": os.environ["PATH"], "LATE_URL": url, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_it_puts_a_task_that_a_consumer_gets(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/queue.db"
    migrate.upgrade(database)
    async with serving(database) as it:
        url = f"http://127.0.0.1:{it.call.port}"
        code, out, err = await node(url, "payments", "charge", '{"trip": 7}', "trip-7")
        assert (code, err) == (0, "")
        first = json.loads(out)
        assert first["created"] is True
        (task,) = await it.receive()
        assert (task["task_id"], task["payload"]) == (first["task_id"], {"trip": 7})
        code, out, _ = await node(url, "payments", "charge", '{"trip": 7}', "trip-7")
        assert (code, json.loads(out)) == (0, {**first, "created": False})
        assert (await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})).status == 204
        code, _, err = await node(url, "payments", "no good")
        assert (code, "400 invalid_task" in err) == (1, True)


async def test_it_runs_by_whatever_path_it_is_called(tmp_path: Path) -> None:
    link = tmp_path / "a link.mjs"
    link.symlink_to(PRODUCER)
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(link), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert (process.returncode, err.startswith(b"usage: ")) == (2, True)


async def test_it_shows_its_token_and_says_what_it_was_told(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        good = it.token("node", "enqueue")
        await it.service.access.load()
        url = f"http://127.0.0.1:{it.call.port}"
        code, _, err = await node(url, "payments", "charge")
        assert (code, err.startswith("401 unauthenticated")) == (1, True)
        code, _, _ = await node(url, "payments", "charge", LATE_TOKEN=good)
        assert code == 0


async def test_it_puts_again_when_the_answer_was_lost(tmp_path: Path) -> None:
    """The first connection ends without an answer, as if the server had died."""
    async with served(tmp_path) as it:
        cut: list[int] = []

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(size)
            found = await it.call("POST", head.split(b" ")[1].decode(), raw=body)
            cut.append(found.status)
            if len(cut) > 1:
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                writer.write(
                    head + f"Content-Length: {len(found.body)}\r\n\r\n".encode() + found.body
                )
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            code, out, err = await node(f"http://127.0.0.1:{port}", "payments", "charge")
        assert (code, err) == (0, "")
        assert cut == [201, 200]  # written once, found again
        assert json.loads(out)["created"] is False
