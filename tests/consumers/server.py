"""`late serve` as a process of its own, and what the script asks of it over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from late.control import Control
from late.schema import migrate

ROOT = Path(__file__).resolve().parents[2]
SCOPES = ("enqueue", "consume", "view", "operate")
START_S = 120.0
SETTINGS = ("--set", "lease_ttl_s=30", "--set", "grace_s=1")
"""A lease is so long that a machine under load loses none: then tasks come once. Consumers that are
killed answer nothing, so the end of the server does not wait for them."""


class Server:
    """A running server.

    Args:
        address: such as http://127.0.0.1:7280.
        token: the token of the judged consumers, which may consume and nothing else.
        own: the script's own token.
    """

    def __init__(self, address: str, token: str, own: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self.token = token
        self._head = {"Authorization": f"Bearer {own}"}
        self._session = session

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send one request, and return its answer's JSON; None if it has no body."""
        async with self._session.request(
            method, f"{self.address}/v1{path}", json=body, headers=self._head
        ) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
            return json.loads(text) if text else None

    async def put(self, queue: str, name: str, payload: object = None) -> str:
        task = {"name": name, "payload": payload or {}}
        accepted = await self.ask("POST", f"/queues/{quote(queue)}/tasks", task)
        return str(accepted["task_id"])

    async def receive(self, queue: str, **asked: Any) -> list[dict[str, Any]]:
        found = await self.ask("POST", f"/queues/{quote(queue)}/receive", asked)
        return list(found["tasks"])

    async def state(self, task_id: str) -> dict[str, Any]:
        """Tell where the task stands. A row that left the log was settled before."""
        found = await self.ask("GET", f"/tasks/{task_id}")
        return dict(found["groups"][0])

    async def is_settled(self, task_id: str) -> bool:
        return (await self.state(task_id))["state"] in ("settled", "unknown")

    async def result(self, task_id: str) -> dict[str, Any]:
        return dict(await self.ask("GET", f"/tasks/{task_id}/result"))

    async def dead(self, queue: str) -> list[dict[str, Any]]:
        found = await self.ask("GET", f"/dead?queue={quote(queue)}")
        return list(found["dead"])


def _tokens(url: str) -> tuple[str, str]:
    with Control(url) as control:
        made = [
            control.tokens.create(name, scopes=list(scopes), queues=["*"])[0]
            for name, scopes in (("consumers", ("consume",)), ("script", SCOPES))
        ]
    return made[0] or "", made[1] or ""


@asynccontextmanager
async def running(url: str, log: Path) -> AsyncIterator[Server]:
    """Run a server on an empty database for the time of the block, with its log in a file."""
    await asyncio.to_thread(migrate.upgrade, url)
    token, own = await asyncio.to_thread(_tokens, url)
    words = ["serve", "tests.consumers.service:app", "--auth", "--http-port", "0", "--log-json"]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "late", *words, *SETTINGS,
            cwd=ROOT, env={**os.environ, "LATE_URL": url}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        port = await _port(process, log)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
            yield Server(f"http://127.0.0.1:{port}", token, own, session)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(120):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _port(process: asyncio.subprocess.Process, log: Path) -> int:
    """Read in the log where the server listens."""
    async with asyncio.timeout(START_S):
        while True:
            lines = (await asyncio.to_thread(log.read_text)).splitlines()
            for line in lines:
                if '"api_served"' in line and line.startswith("{") and line.endswith("}"):
                    return int(json.loads(line)["port"])
            if process.returncode is not None:
                raise RuntimeError(f"the server does not start:\n{chr(10).join(lines[-20:])}")
            await asyncio.sleep(0.05)
