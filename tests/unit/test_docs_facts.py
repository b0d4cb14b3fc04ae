"""What single lines of the docs claim, by what they claim it of."""

from __future__ import annotations

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from late.api.access.auth import READ_EVERY_S

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def test_the_advice_for_sqlite_lets_both_kinds_of_engines_wait(tmp_path: Path) -> None:
    [seconds] = re.findall(r"connect_args=\{\"timeout\": (\d+)\}", page("fastapi"))
    given: dict[str, Any] = {"connect_args": {"timeout": int(seconds)}}
    ask = "pragma busy_timeout"
    with create_engine(f"sqlite:///{tmp_path}/a.db", **given).connect() as connection:
        assert connection.exec_driver_sql(ask).scalar() == int(seconds) * 1000

    async def of_async() -> Any:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db", **given)
        async with engine.connect() as connection:
            found = (await connection.exec_driver_sql(ask)).scalar()
        await engine.dispose()
        return found

    assert asyncio.run(of_async()) == int(seconds) * 1000


def test_with_systemd_what_is_installed_serves_what_the_units_serve() -> None:
    [line] = re.findall(r"^/opt/late/bin/pip install .*", page("systemd"), re.MULTILINE)
    [named] = re.findall(r"\[(.*?)\]", line)
    extras = set(named.split(","))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras <= known.keys()
    unit = (ROOT / "deploy" / "systemd" / "late-serve@.service").read_text()
    assert "--http-port" in unit
    assert "--grpc-port" in unit
    assert {"serve", "grpc"} <= extras


def test_the_pages_say_how_long_a_new_token_is_not_known() -> None:
    assert READ_EVERY_S == 2.0
    assert "every two seconds: for so long a new one is answered 401" in page("http")
    assert "just created is refused for about two seconds" in page("page")
