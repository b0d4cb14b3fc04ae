"""Two kinds of tasks fight for rows, for real: the screen, the API, the findings and `late analyze`
name both and the row."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from late.control import Control
from late.model.worker_report import WorkerReport
from late.observability import conflicts
from late.schema.spanner.address import place_of
from late.testing.servers.spanner import create_database
from tests.drills.incidents import rows_are_fought_for
from tests.drills.kit import deployment
from tests.integration import spanner_kit as kit
from tests.integration import test_analyze as fights
from tests.integration.test_analyze import begin, give, running, take
from tests.integration.waking_kit import database
from tests.unit.cli_kit import Cli
from tests.web.chromium import Tab
from tests.web.serving import Served

pytestmark = pytest.mark.timeout(1_300)


def assert_named(tab: Tab, url: str, one: str, two: str, *rows: str) -> None:
    """Look at the screen and the API of a server on this database."""
    with Served(url, roles=("api", "web")) as served:
        tab.go(served.root + "conflicts")
        text = tab.text("main")
        assert f"{one} and {two}" in text
        assert any(row in text for row in rows)
        assert "What helps: " in text
        with urlopen(f"http://127.0.0.1:{served.port}/v1/conflicts", timeout=120) as answer:
            pairs = json.load(answer)["pairs"]
        # Tasks of one kind fight with their like, too.
        [pair] = [each for each in pairs if each["tags"] == [one, two]]
        assert pair["places"][0]["place"] in rows
        assert {each["tag"] for each in pair["statements"]} & {one, two}


def test_a_fight_on_postgres_is_named_by_the_screen_and_the_alerts_metric(
    tab: Tab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = "late-foreground:pay", "late-foreground:refund"
    rows = ("account(id=7)", "account(id=8)")
    with database() as url, deployment(url, tmp_path) as on, rows_are_fought_for(on):

        def seen() -> bool:
            pairs = on.control.reported_conflicts().pairs
            return any(
                pair.tags == (one, two) and any(place.place in rows for place in pair.places)
                for pair in pairs
            )

        on.until(seen)
        assert_named(tab, url, one, two, *rows)
        analyzed = Cli(capsys, url).fine("analyze", url, "--seconds", "3").out
        assert one in analyzed
        assert two in analyzed
        on.scrape()
        metric = [x for x in on._scraped[-1] if x.startswith("late_conflict_seconds_total")]
        assert any(f'tag="{one}"' in x and f'other="{two}"' in x for x in metric) or any(
            f'tag="{two}"' in x and f'other="{one}"' in x for x in metric
        )


async def test_a_fight_on_spanners_emulator_is_named_by_the_screen(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "default", conflicts.Recorder(conflicts.events.default))
    monkeypatch.setattr(fights, "stage", fights.Stage())
    with kit.emulator() as host, kit.environment(host):
        url = create_database(migrated=True)
        place = place_of(url)
        client: Any = kit.spanner.Client(project=place.project, disable_builtin_metrics=True)
        made = client.instance(place.instance).database(place.database)
        made.update_ddl([fights.ACCOUNT]).result()
        with begin(url) as tx:
            tx.insert("account", ["id", "balance"], [(7, 0), (8, 0)])
        async with running(url, take, give) as it:
            await it.ended(2)
        told = conflicts.default.tally.told()
        with Control(url) as control:
            control.reports.write(WorkerReport("w1", "host:1", ("default",), 15.0, conflicts=told))
        one, two = "late-foreground:give", "late-foreground:take"
        await asyncio.to_thread(assert_named, tab, url, one, two, "account(7)")
