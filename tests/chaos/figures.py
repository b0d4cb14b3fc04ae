"""What the storms of the full size found: kept in `docs/figures/chaos.json`, shown as a table by
`python -m tests.chaos.figures`."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.sizes import FULL

FILE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "chaos.json"
PROMISES = {
    "test_p1_p2_nothing_is_lost_and_nothing_aborted_runs": "P1 P2 P6 P7: kill storm",
    "test_p2b_what_started_survives_a_crash_of_the_server": "P2b: crash, gate on",
    "test_without_the_gate_it_does_not": "P2b: control, gate off",
    "test_p3_p6_a_run_without_faults_starts_each_task_once": "P3 P6: no faults, pages of 7",
    "test_p4_an_owner_that_slept_past_its_lease_changes_nothing": "P4: paused owners",
    "test_p5_each_task_is_settled_once_whatever_becomes_of_the_commit": "P5: lost COMMITs",
    "test_p7_when_the_network_is_back_all_is_done_and_nothing_is_restarted": "P7: network",
    "test_p8_timers_are_neither_early_nor_lost": "P8: timers, clocks wrong by 10 min",
    "test_p9_a_schedule_fires_once_per_tick": "P9: schedule every second",
    "test_a_handler_that_is_called_done_before_it_is_loses_tasks": "control: done too soon",
    "test_an_owner_that_nothing_fences_settles_twice": "control: no fence",
}


def keep(found: Mapping[str, Any]) -> None:
    """Remember what the running test found, if it is of the full size."""
    if not FULL:
        return
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].partition(" ")[0]
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tests may run side by side
        file.seek(0)
        kept = json.loads(file.read() or "{}")
        kept[test] = dict(found) | {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "load": round(os.getloadavg()[1], 1),
        }
        file.truncate(0)
        file.write(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def table(kept: Mapping[str, Any]) -> str:
    """One row per storm, in the order of the promises."""
    lines = [
        "| promise | store | tasks | aborted | faults | duplicates (bound) | broken | s | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for test, promise in PROMISES.items():
        for name, found in sorted(kept.items()):
            if name.partition("[")[0] == test:
                lines.append(_row(promise, found))
    return "\n".join(lines)


def _row(promise: str, found: Mapping[str, Any]) -> str:
    load = found["load"]
    if "crashes" in found:
        gone = f"{found['vanished']} executed and vanished"
        crashes = f"{found['crashes']} crashes"
        return f"| {promise} | {found['store']} | | | {crashes} | | {gone} | | {load} |"
    faults = ", ".join(f"{n} {word}" for word, n in sorted(found["faults"].items())) or "none"
    repeats = f"{found['duplicates']} ({found['duplicates_max']})"
    broken = ", ".join(sorted(found["broken"])) or "nothing"
    return (
        f"| {promise} | {found['store']} | {found['tasks']:,} | {found['aborted']:,} | {faults} "
        f"| {repeats} | {broken} | {found['seconds']:.0f} | {load} |"
    )


if __name__ == "__main__":
    print(table(json.loads(FILE.read_text())))
