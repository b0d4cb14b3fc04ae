"""`late group reset` with a rate, over the command line and over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import late
from late.control import Control
from late.control.groups import window
from late.outbox import connect
from late.testing import drain
from tests.support import sqlite
from tests.unit.api_kit import served
from tests.unit.cli_kit import Cli
from tests.unit.web_kit import add_schedule


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    url = sqlite.database(tmp_path / "replay.db")
    monkeypatch.setenv("LATE_URL", url)
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(capsys, url)


def test_a_replay_is_rehearsed_and_then_has_its_rate(cli: Cli) -> None:
    app = late.App(cli.url)

    @app.task(queue="orders")
    def ship(n: int) -> None:
        pass

    with connect(cli.url) as tx:
        for n in range(3):
            app.enqueue(tx, ship.call(n))
    with Control(cli.url) as control:
        control.groups.set_retention(3_600)
        drain(app)
        asked = ("group", "reset", "default", "--from", "1h", "--rate", "0.5")
        shown = cli.fine(*asked, "--dry-run").out
        assert "Would reset group default" in shown
        assert "orders" in shown
        assert "what is older is not kept; `late retention 7d`" in shown
        assert "at a rate of 0.5/s it takes 6.0s" in shown
        assert "handlers do again what they did, also with transaction=True" in shown
        unasked = cli(*asked)
        assert (unasked.code, "this resets group default" in unasked.err) == (2, True)
        assert "Would reset group default" in unasked.out
        assert control.groups.replays() == {}
        assert "Reset group default" in cli.fine(*asked, "--yes").out
        assert control.groups.replays()["default"].rate == 0.5
    words = ("group", "reset", "default", "--to", "now", "--rate", "2")
    assert "replays nothing" in cli.refused(*words)


async def test_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        path, body = "/v1/groups/default/reset", {"place": "beginning", "rate": 5.0}
        answer = await it.call("POST", path, body)
        assert (answer.status, answer.json["rate"], answer.json["queues"]) == (200, 5.0, {})
        with Control(it.url) as control:
            assert control.groups.replays()["default"].rate == 5.0
        assert (await it.call("POST", path, body | {"rate": 0})).status == 400


def three_that_ended(cli: Cli, ran: list[int] | None = None) -> tuple[late.App, int]:
    """Run three tasks that the log keeps; return their app, and a time after them."""
    app = late.App(cli.url)

    @app.task(queue="orders")
    def ship(n: int) -> None:
        if ran is not None:
            ran.append(n)

    with Control(cli.url) as control:
        control.groups.set_retention(3_600)
        with connect(cli.url) as tx:
            app.enqueue_many(tx, [ship.call(n) for n in range(3)])
        drain(app)
        until = control.now() + 2_000
        while control.now() <= until:
            pass
    return app, until


def test_a_window_is_rehearsed_and_then_replayed(cli: Cli) -> None:
    ran: list[int] = []
    app, until = three_that_ended(cli, ran)
    moment = datetime.fromtimestamp(until / 1e6, UTC).isoformat().replace("+00:00", "Z")
    command = ("group", "reset", "default", "--from", "2001-01-01T00:00:00Z", "--until", moment)
    assert "give --rate" in cli.refused(*command)
    command = (*command, "--rate", "100")
    shown = " ".join(cli.fine(*command, "--dry-run").out.split())
    assert "Would run again in group default" in shown
    assert "orders" in shown
    assert "what is older is not kept; `late retention 7d`" in shown
    assert "at a rate of 100/s it takes" in shown
    assert "handlers do again what they did, also with transaction=True" in shown
    assert cli.fine(*command, "--dry-run", "--json").json["copied"]["n"] == 3
    assert "this replays 3: give --yes" in cli(*command).err
    done = cli.fine(*command, "--yes")
    assert "3 tasks are put back" in done.out
    assert "this goes on" not in done.err, "nothing is left"
    assert "has replayed this window, 3 tasks" in cli.refused(*command, "--yes")
    assert cli.fine(*command, "--yes", "--again", "--json").json["copied"]["n"] == 0
    drain(app, wait_s=5.0)
    assert sorted(ran) == [0, 0, 1, 1, 2, 2]
    words = ("group", "reset", "default", "--to", "now", "--again")
    assert "give --until" in cli.refused(*words)


def test_a_replay_that_is_under_way_is_shown_and_cancelled(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, until = three_that_ended(cli)
    assert "no replay of a window under way" in cli.refused("group", "cancel-replay", "default")
    monkeypatch.setattr(window, "SLICE", 1)
    with Control(cli.url) as control:
        first = control.groups.replay_window("default", 0, until, rate=0.01)
        assert (first.finished, first.copied.n) == (False, 1)
        assert "default" in {each.name for each in control.groups.all() if each.replay}
    shown = " ".join(cli.fine("group", "show", "default").out.split())
    assert "replay 1970-01-01 00:00:00Z to" in shown
    assert "not ended: 1 tasks put back at 0.01/s, the last falls due" in shown
    assert "Replays of windows that have not ended" in cli.fine("status").out
    (seen,) = cli.fine("status", "--json").json["groups"]
    assert (seen["replay"]["copied"], seen["replay"]["until_us"]) == (1, until)
    said = cli.fine("group", "cancel-replay", "default").out
    assert "cancelled: 1 tasks are put back, and run as they fall due" in said
    assert "no replay of a window under way" in cli.refused("group", "cancel-replay", "default")
    assert "no consumer group 'nope'" in cli.refused("group", "cancel-replay", "nope")
    assert "not ended" not in cli.fine("group", "show", "default").out
    assert "have not ended" not in cli.fine("status").out
    moment = datetime.fromtimestamp(until / 1e6, UTC).isoformat().replace("+00:00", "Z")
    ended = cli.refused("group", "reset", "default", "--from", "beginning", "--until", moment,
                        "--rate", "1", "--yes")  # fmt: skip
    assert "cancelled after 1 tasks" in ended


def test_a_log_that_keeps_nothing_names_the_remedy(cli: Cli) -> None:
    app = late.App(cli.url)
    drain(app)
    ended = cli.fine("group", "reset", "default", "--from", "1h", "--until", "now", "--rate", "1",
                     "--yes")  # fmt: skip
    shown = " ".join(ended.out.split())
    assert "keeps no task that has ended; `late retention 7d` keeps more from now on" in shown
    assert "nothing is put back" in shown


async def test_a_window_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        path = "/v1/groups/default/replay"
        body = {"since": "2001-01-01T00:00:00Z", "until": "2001-01-02T00:00:00Z", "rate": 5.0}
        shown = await it.call("POST", path, body | {"dry_run": True})
        assert (shown.status, shown.json["finished"], shown.json["queues"]) == (200, False, {})
        done = await it.call("POST", path, body)
        assert (done.status, done.json["finished"], done.json["copied"]["n"]) == (200, True, 0)
        assert (await it.call("POST", path, body)).status == 409
        assert (await it.call("POST", path, body | {"again": True})).status == 200
        assert (await it.call("POST", f"{path}/cancel", {})).status == 409, "it has ended"
        for wrong in ({"rate": 0}, {"until": "2000-01-01T00:00:00Z"}, {"until": "soon"}):
            assert (await it.call("POST", path, body | wrong)).status == 400, wrong


def test_a_backfill_is_rehearsed_and_then_done(cli: Cli) -> None:
    add_schedule(cli.url)
    span = ("--from", "2001-01-01T00:00:00Z", "--until", "2001-01-03T00:00:00Z")
    command = ("schedule", "backfill", "nightly", *span)
    shown = " ".join(cli.fine(*command, "--dry-run").out.split())
    assert "nightly: 2 of 2 ticks would be enqueued" in shown
    assert "the log keeps nothing of them: what has run would run again; `late retention" in shown
    unasked = cli(*command)
    assert (unasked.code, "this enqueues 2 tasks" in unasked.err) == (2, True)
    done = " ".join(cli.fine(*command, "--yes").out.split())
    assert "2 of 2 ticks are enqueued" in done
    assert "the log keeps nothing of them: what has run runs again" in done
    again = cli.fine(*command, "--yes", "--json").json
    assert (again["known"], again["enqueued"]) == (2, 0)
    assert "no schedule 'nope'" in cli.refused("schedule", "backfill", "nope", *span, "--yes")
