"""What a limit per key holds back is shown to those who may see its queue, and to nobody else."""

from __future__ import annotations

from pathlib import Path

from late.control import Control
from late.control.status.snapshot import look
from late.model.access.rights import Caller, Right
from late.model.worker_report import LimitedKey, WorkerReport
from late.web.access.rules import narrowed
from tests.integration.control_kit import add_worker
from tests.unit.cli_kit import Cli
from tests.unit.web_kit import HOSTILE, page

KEYS = (
    LimitedKey("default", "mail", "shop-7", 2, 31, concurrency=2),
    LimitedKey("default", "pay", HOSTILE, 1, 40, rate=0.5),
)


def tell(control: Control) -> None:
    add_worker(control.url)
    control.reports.write(WorkerReport("w1", "host:1", ("default",), 15.0, limited_keys=KEYS))


def test_the_status_names_the_keys(cli: Cli) -> None:
    with Control(cli.url) as control:
        tell(control)
    said = cli.fine("status").out
    assert "Limited by key" in said
    assert "shop-7" in said
    found = cli.fine("status", "--json", "--queue", "mail").json["limited_keys"]
    [shop] = found
    assert (shop["key"], shop["running"], shop["waiting"]) == ("shop-7", 2, 31)


async def test_the_page_of_a_queue_names_its_keys(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        tell(it.control)
        shown = (await it.get("queues/mail")).text
        assert "Limited by key" in shown
        assert "shop-7" in shown
        assert "<script>alert" not in (await it.get("queues/pay")).text
        assert HOSTILE in await it.shown("queues/pay")


def test_nobody_sees_the_keys_of_a_queue_that_is_not_theirs(cli: Cli) -> None:
    with Control(cli.url) as control:
        tell(control)
        seen = look(control)
    assert {key.queue for key in seen.status.limited_keys} == {"mail", "pay"}
    found = narrowed(seen, Caller("eve", (Right("view", ("mail",)),)))
    assert found.status.limited_keys == KEYS[:1]
    assert [told.report.limited_keys for told in found.reports] == [KEYS[:1]]
