"""`python -m tests.mutants`: change one line of `late` at random, many times; do the tests see it?

python -m tests.mutants                         400 mutants of seed 1, as many of each area
python -m tests.mutants --seed 2 --count 80     others, and fewer
python -m tests.mutants --areas prune keeper    of these areas only
python -m tests.mutants --save                  write docs/figures/mutants.json, seed by seed

The exit code is 1 if fewer than 95 % are found. A mutant that changes nothing that anyone could see
is listed in `equivalents.py` with the reason, and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from late.schema.spanner.address import HOST_VARIABLE
from tests.mutants.areas import AREAS, ROOT
from tests.mutants.coverage_map import CoverageMap, record
from tests.mutants.runner import ForkServer, Mutant, Verdict, try_all
from tests.servers import URL_VARIABLE, postgres_url, spanner_host, stop_servers

GOAL = 0.95
RESULTS = ROOT / "docs" / "figures" / "mutants.json"
TOOLS = ROOT / ".late" / "mutants" / "tools" / "bin" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seen", type=Path, nargs="+", help="coverage that earlier runs have kept")
    parser.add_argument("--verbose", action="store_true", help="say of each what has found it")
    parser.add_argument("--save", action="store_true", help="write docs/figures/mutants.json")
    asked = parser.parse_args()
    for variable, server in ((URL_VARIABLE, postgres_url()), (HOST_VARIABLE, spanner_host())):
        if server is not None:  # one for all
            os.environ[variable] = server
    try:
        seen = asked.seen or [ROOT / ".late" / "mutants" / "coverage"]
        if asked.seen is None:
            record(seen[0])
        mutants = make(asked.seed, asked.count // len(asked.areas), asked.areas)
        with tempfile.TemporaryDirectory(prefix="late-mutants-") as folder:
            servers = [ForkServer(Path(folder, str(number))) for number in range(asked.workers)]
            tell = _tell_each if asked.verbose else _tell
            try:
                verdicts = try_all(mutants, servers, CoverageMap(*seen), tell)
            finally:
                for server in servers:
                    server.close()
    finally:
        stop_servers()
    return report(asked.seed, verdicts, save=asked.save)


def make(seed: str, count: int, areas: Sequence[str]) -> list[Mutant]:
    """Make `count` mutants of each area, in the environment that has cosmic-ray."""
    made = subprocess.run(
        [str(TOOLS), "-m", "tests.mutants.mutations", seed, str(count), *areas],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    mutants = [Mutant(**json.loads(line)) for line in made.stdout.splitlines()]
    return [mutant for mutant in mutants if mutant.equivalent is None]


def _tell(verdict: Verdict) -> None:
    if not verdict.found_by:
        how = f"{verdict.mutant.operator}, {verdict.seconds:.0f} s"
        print(f"NOT FOUND ({how}) {verdict.mutant}", flush=True)


def _tell_each(verdict: Verdict) -> None:
    if verdict.found_by:
        print(f"found ({verdict.seconds:.0f} s, {verdict.found_by}) {verdict.mutant}", flush=True)
    _tell(verdict)


def report(seed: str, verdicts: Sequence[Verdict], *, save: bool) -> int:
    """Print the score of each module and area; return the exit code."""
    print(f"{'':50} {'mutants':>8} {'found':>6} {'score':>6}")
    rows = []
    for area in AREAS:
        of_area = [each for each in verdicts if each.mutant.area == area]
        for module in sorted({each.mutant.module for each in of_area}):
            of_module = [each for each in of_area if each.mutant.module == module]
            rows.append(_row(area, module, of_module))
        if of_area:
            _row(area, area, of_area)
    _row("", "all", verdicts)
    if save:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        kept[seed] = rows
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    found = sum(bool(each.found_by) for each in verdicts)
    return 0 if found >= GOAL * len(verdicts) else 1


def _row(area: str, name: str, verdicts: Sequence[Verdict]) -> dict[str, object]:
    found = sum(bool(each.found_by) for each in verdicts)
    score = found / max(1, len(verdicts))
    print(f"{name:50} {len(verdicts):8} {found:6} {score:6.1%}")
    return {
        "area": area,
        "module": name,
        "mutants": len(verdicts),
        "found": found,
        "not_found": [str(each.mutant) for each in verdicts if not each.found_by],
    }


if __name__ == "__main__":
    raise SystemExit(main())
