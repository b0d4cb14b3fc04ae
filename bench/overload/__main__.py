"""`make overload`: four troubles, each with the knobs and, as a control, without them.

The control has to fail: a scenario that ends well without protection proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.main import RESULTS, machine
from bench.overload.scenarios import SCENARIOS
from bench.targets import Postgres, Sqlite, Target


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--save", metavar="FILE", help="keep the figures as JSON")
    parser.add_argument("--postgres", metavar="URL", help="a server; without one it is SQLite")
    options = parser.parse_args(arguments)
    if unknown := set(options.only) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    report = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "store": "postgresql" if options.postgres else "sqlite",
        "load_average": round(os.getloadavg()[1], 1),
        "runs": [],
    }
    proven = True
    for name in options.only or SCENARIOS:
        for protected in (True, False):
            with tempfile.TemporaryDirectory(prefix="late-overload-") as folder:
                target: Target = Sqlite(Path(folder))
                if options.postgres:
                    target = Postgres(options.postgres)
                try:
                    found = asyncio.run(SCENARIOS[name](target.fresh(), protected=protected))
                finally:
                    target.clear()
            words = "with the knobs" if protected else "control, without them"
            print(f"{name}, {words}: {json.dumps(found)}", flush=True)
            report["runs"].append({"scenario": name, "protected": protected, **found})
            proven &= found["ok"] is protected
    path = Path(options.save) if options.save else RESULTS / "overload.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print("proven" if proven else "NOT proven: see above", f"({path})")
    return 0 if proven else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
