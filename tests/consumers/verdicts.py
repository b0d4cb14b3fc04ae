"""Judge one consumer: all scenarios side by side, and a line for each."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.consumers.names import SCENARIOS
from tests.consumers.scenarios import ALL
from tests.consumers.server import Server, running
from tests.consumers.stage import Stage, Wrong

LIMIT_S = 60.0
"""The longest wait of a scenario."""


@dataclass(frozen=True)
class Verdict:
    """The end of one scenario: what was wrong, None if nothing was, and how long it took."""

    wrong: str | None
    took_s: float


Verdicts = dict[str, Verdict]
"""Scenario -> its verdict."""


async def _verdict(stage: Stage) -> Verdict:
    began = time.monotonic()
    wrong = None
    try:
        await ALL[stage.queue](stage)
    except Wrong as error:
        wrong = str(error)
    return Verdict(wrong, time.monotonic() - began)


async def judge(
    server: Server,
    command: Sequence[str],
    names: Collection[str] = SCENARIOS,
    *,
    limit_s: float = LIMIT_S,
) -> Verdicts:
    """Run the scenarios of these names side by side against a server that nobody else uses."""
    stages = [Stage(server, name, command, limit_s) for name in names]
    found = await asyncio.gather(*map(_verdict, stages))
    return dict(zip(names, found, strict=True))


async def judge_on(
    url: str,
    command: Sequence[str],
    names: Collection[str] = SCENARIOS,
    *,
    limit_s: float = LIMIT_S,
) -> Verdicts:
    """Start a server on an empty database, and judge the consumer."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(url, Path(folder) / "server.log") as server:
            return await judge(server, command, names, limit_s=limit_s)


def table(verdicts: Verdicts) -> str:
    """Write a line for each scenario: what it asks for, and what was wrong."""
    lines = []
    for name, verdict in verdicts.items():
        asked = (ALL[name].__doc__ or "").splitlines()[0]
        word = "ok   " if verdict.wrong is None else "WRONG"
        lines.append(f"{word} {name:<12} {verdict.took_s:3.0f} s  {asked}")
        lines += [f"      {line}" for line in (verdict.wrong or "").splitlines()]
    return "\n".join(lines)
