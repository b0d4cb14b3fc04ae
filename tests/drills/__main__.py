"""`make drills`: make each incident on PostgreSQL, and print who says it after how many seconds.

python -m tests.drills [NAME ...]
python -m tests.drills --save [NAME ...]          keep them in docs/figures/drills.json
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from tests.drills.incidents import DRILLS, Drill
from tests.drills.kit import SCRAPE_S, SPEAKERS, Deployment, deployment, runbook_commands

FILE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "drills.json"
DESTROYS = re.compile(r"late (group|queue) delete|late dead purge")


def run(drill: Drill, on: Deployment) -> tuple[dict[str, float | None], list[str]]:
    """Make the incident; return when each said it, and what went wrong."""
    said: dict[str, float | None] = dict.fromkeys(SPEAKERS)
    faults: list[str] = []
    with drill.make(on), ThreadPoolExecutor(3) as threads:  # type: ignore[attr-defined]
        began = scraped = time.monotonic()
        on.scrape()

        def listen(who: str) -> None:
            while said[who] is None and time.monotonic() < began + drill.within_s:
                text = on.answer(who)
                if all(re.search(pattern, text) for pattern in drill.said):
                    said[who] = time.monotonic() - began
                if DESTROYS.search(text):
                    faults.append(f"{who} advises what destroys")
                time.sleep(0.5)

        # At the same time: none is to wait for another one's answer.
        asked = [threads.submit(listen, who) for who in SPEAKERS[:-1]]
        while None in said.values() and time.monotonic() < began + drill.within_s:
            if time.monotonic() >= scraped + SCRAPE_S:
                scraped += SCRAPE_S
                on.scrape()
                if said["alert"] is None:
                    said["alert"] = on.fires(drill.alert)
            time.sleep(0.2)
        for each in asked:
            each.result()
        for line in runbook_commands(drill.runbook):
            stand_for = {"TARGET": "bank", "GROUP": drill.group, "TASK_ID": on.first_id}
            words = [stand_for.get(word, word) for word in shlex.split(line)]
            ended = on.late(*words[1:])
            if ended.returncode not in (0, 1):
                faults.append(f"{line}: {ended.stderr.strip()}")
        for who, at in said.items():
            if at is None and who != "alert":
                text = on.answer(who)
                missing = [p for p in drill.said if not re.search(p, text)]
                faults.append(f"{who} does not say {missing} in: {text[-1_500:]}")
            elif at is None:
                faults.append(f"{drill.alert} does not fire")
    return said, faults


def keep(drill: Drill, said: dict[str, float | None]) -> None:
    """Keep the times of a drill in place of its former ones."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    kept[drill.name] = {
        "said": {who: None if at is None else round(at) for who, at in said.items()},
        "alert": drill.alert,
        "runbook": drill.runbook,
        "date": datetime.now(UTC).date().isoformat(),
        "load": round(os.getloadavg()[1], 1),
    }
    ordered = {each.name: kept[each.name] for each in DRILLS if each.name in kept}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n")


def main(words: list[str]) -> int:
    """Run the drills whose name contains one of these, or all."""
    names, bad = [word for word in words if word != "--save"], 0
    print(f"| drill | {' | '.join(SPEAKERS)} | runbook |")
    print("|---|" + "---|" * (len(SPEAKERS) + 1))
    for drill in DRILLS:
        if names and not any(name in drill.name for name in names):
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            drill.database() as url,
            deployment(url, Path(folder)) as on,
        ):
            said, faults = run(drill, on)
        cells = ["never" if said[who] is None else f"{said[who]:.0f} s" for who in SPEAKERS]
        print(f"| {drill.name} | {' | '.join(cells)} | {drill.runbook} |", flush=True)
        if "--save" in words and not faults:
            keep(drill, said)
        for fault in faults:
            print(f"  {fault}", file=sys.stderr, flush=True)
        bad += bool(faults)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
