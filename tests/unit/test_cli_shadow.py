"""`late group shadow` and `compare`, over the command line and over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

import late
from late.outbox import connect
from late.testing import drain
from tests.support import sqlite
from tests.unit.api_kit import served
from tests.unit.cli_kit import Cli


def service(url: str, group: str) -> late.App:
    app = late.App(url, group=group)

    @app.task(retry=late.Retry(max_attempts=1))
    def ship(ctx: late.Context, n: int) -> None:
        if ctx.shadow and n == 2:
            raise ValueError("not yet")

    return app


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    url = sqlite.database(tmp_path / "shadow.db")
    monkeypatch.setenv("LATE_URL", url)
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(capsys, url)


def test_a_shadow_from_its_creation_to_its_comparison(cli: Cli) -> None:
    shown = cli.fine("group", "shadow", "try", "--of", "default", "--from", "beginning").out
    assert "idle, shadow of default" in shown
    real = service(cli.url, "default")
    with connect(cli.url) as tx:
        for n in range(3):
            real.enqueue(tx, real.tasks["ship"].call(n))
    assert "3 tasks are not read yet by try" in cli.fine("group", "compare", "try").out
    drain(real, timeout_s=120)
    assert drain(service(cli.url, "try"), timeout_s=120) == {"done": 2, "dead": 1}
    found = cli.fine("group", "compare", "try", "--json").json
    (difference,) = found["differences"]
    assert (difference["shadow"], difference["real"], found["tasks"][0]["differ"]) == (
        "dead", "done", 1
    )  # fmt: skip
    table = cli.fine("group", "compare", "try").out
    assert "ValueError: not yet" in table
    assert "not read yet" not in table


def test_what_is_wrong_is_one_line(cli: Cli) -> None:
    for arguments, words in (
        (("shadow", "try", "--of", "nope"), "no consumer group 'nope'"),
        (("shadow", "try", "--of", "default", "--speed", "2"), "a speed needs a time"),
        (("shadow", "try", "--of", "default", "--rate", "0"), "rate 0: from 0.001"),
        (("shadow", "try", "--of", "default", "--keep", "90d"), "from a second to 31 days"),
        (("shadow", "default", "--of", "default"), "there is a group 'default' already"),
        (("compare", "default"), "is no shadow"),
    ):
        assert words in cli.refused("group", *arguments)


async def test_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        made = await it.call("POST", "/v1/shadows", {"name": "try", "of": "default", "rate": 5.0})
        assert (made.status, made.json["shadow_of"]) == (200, "default")
        found = (await it.call("GET", "/v1/groups/try/compare")).json
        assert (found["shadow"], found["real"], found["differences"]) == ("try", "default", [])
        other = {"name": "two", "of": "default"}
        for body, status in (
            (other | {"rate": 0}, 400),
            (other | {"speed": 2.0}, 400),
            (other | {"of": "try"}, 409),
            (other | {"of": "nope"}, 400),
            (other | {"name": "try"}, 409),
        ):
            assert (await it.call("POST", "/v1/shadows", body)).status == status, body
        assert (await it.call("GET", "/v1/groups/default/compare")).status == 400
        assert (await it.call("GET", "/v1/groups/nope/compare")).status == 404
