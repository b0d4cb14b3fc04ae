"""The consumers of the examples pass the script, and each broken one is found."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.consumers import broken
from tests.consumers.languages import command, needs_go
from tests.consumers.names import SCENARIOS
from tests.consumers.server import running
from tests.consumers.verdicts import Verdicts, judge, judge_on, table
from tests.servers import drop_database, fresh_database, postgres_url

LIMIT_S = 180.0


def passed(verdicts: Verdicts) -> bool:
    assert tuple(verdicts) == SCENARIOS
    return all(each.wrong is None for each in verdicts.values())


@pytest.mark.parametrize("language", ["python", "typescript", pytest.param("go", marks=needs_go)])
async def test_a_consumer_passes_the_script(language: str, tmp_path: Path) -> None:
    words = command(language, "consumer", tmp_path)
    verdicts = await judge_on(f"sqlite:///{tmp_path}/queue.db", words, limit_s=LIMIT_S)
    assert passed(verdicts), "\n" + table(verdicts)


async def test_a_consumer_passes_the_script_on_postgres(tmp_path: Path) -> None:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    url = fresh_database(admin).replace("postgresql:", "postgresql+psycopg:")
    try:
        verdicts = await judge_on(url, command("python", "consumer", tmp_path), limit_s=LIMIT_S)
    finally:
        drop_database(admin, url)
    assert passed(verdicts), "\n" + table(verdicts)


async def test_each_broken_consumer_is_found(tmp_path: Path) -> None:
    """Each scenario has a consumer with a fault that it alone is there to find."""
    assert sorted(name for names in broken.FAULTS.values() for name in names) == sorted(SCENARIOS)
    async with running(f"sqlite:///{tmp_path}/queue.db", tmp_path / "server.log") as server:
        found = await asyncio.gather(
            *(
                judge(server, [sys.executable, broken.__file__, fault], names, limit_s=LIMIT_S)
                for fault, names in broken.FAULTS.items()
            )
        )
    for fault, verdicts in zip(broken.FAULTS, found, strict=True):
        for name, verdict in verdicts.items():
            assert verdict.wrong is not None, f"{name} did not find a consumer that {fault}"
            # Found by what it did, and not by a wait without an end.
            assert "went by before" not in verdict.wrong, f"{fault}: {verdict.wrong}"
