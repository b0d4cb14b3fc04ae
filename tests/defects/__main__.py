"""`python -m tests.defects`: break `late` in each of the known ways, and see it found.

python -m tests.defects                 all of them; the exit code is 1 if one was not found
python -m tests.defects D7 clock-ahead  these
python -m tests.defects --save          all of them, and write docs/figures/defects.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics

from tests.defects.catching import ROOT, Verdict, catch, passes_without
from tests.defects.defect import Defect
from tests.defects.registry import DEFECTS
from tests.servers import URL_VARIABLE, postgres_url, stop_servers

RESULTS = ROOT / "docs" / "figures" / "defects.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.defects")
    parser.add_argument("names", nargs="*", metavar="name", help="all by default")
    parser.add_argument("--save", action="store_true", help="write docs/figures/defects.json")
    asked = parser.parse_args()
    chosen = [DEFECTS[name] for name in asked.names] or list(DEFECTS.values())
    url = postgres_url()  # one server for all
    if url is not None:
        os.environ[URL_VARIABLE] = url
    try:
        return _run(chosen, save=asked.save)
    finally:
        stop_servers()


def _run(chosen: list[Defect], *, save: bool) -> int:
    sound = _sound(chosen)
    print(f"{'defect':20} {'found by':66} {'s':>5} worlds", flush=True)
    verdicts = []
    for defect in chosen:
        verdict = catch(defect)
        verdicts.append(verdict)
        by = f"simulator, {defect.finds}" if defect.simulated else defect.finds.partition("::")[2]
        found = verdict.caught and defect.name in sound
        mark = "" if found else f"  NOT FOUND: {verdict.reason}"
        worlds = verdict.worlds or ""
        print(f"{defect.name:20} {by[:66]:66} {verdict.seconds:5.1f} {worlds:>6}{mark}", flush=True)
    caught = [v for v in verdicts if v.caught and v.defect.name in sound]
    lived = [v.worlds for v in caught if v.worlds]
    median = f"; median of worlds to detection {statistics.median(lived):g}" if lived else ""
    print(f"{len(caught)}/{len(verdicts)} caught{median}")
    if save:
        _save(verdicts, caught)
    return 0 if len(caught) == len(verdicts) else 1


def _sound(chosen: list[Defect]) -> set[str]:
    """Names of the defects whose tests pass as long as nothing is broken: each test once."""
    longest: dict[tuple[str, str], Defect] = {}
    for defect in chosen:
        key = (defect.test, defect.finds)
        longest[key] = max(longest.get(key, defect), defect, key=lambda each: each.worlds)
    sound = {key for key, defect in longest.items() if _passes(defect)}
    return {defect.name for defect in chosen if (defect.test, defect.finds) in sound}


def _passes(defect: Defect) -> bool:
    run = passes_without(defect)
    if run.code:
        print(f"{defect.test} fails without any defect:\n{run.output[-2000:]}")
    return run.code == 0


def _save(verdicts: list[Verdict], caught: list[Verdict]) -> None:
    rows = [
        {
            "defect": v.defect.name,
            "what": v.defect.what,
            "found_by": v.defect.finds,
            "caught": v in caught,
            "seconds": round(v.seconds, 1),
            "worlds": v.worlds,
            "reason": v.reason,
        }
        for v in verdicts
    ]
    RESULTS.write_text(json.dumps({"defects": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
