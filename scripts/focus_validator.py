"""Run the FOCUS project's validator on our `focus.csv`, and on the bill that it was made of.

    python scripts/focus_validator.py BILL.csv --environment DIR

BILL is the sample of the FOCUS project, or another bill of one month or more. A cost report of it,
by owner, is made with two queues of work on each day, and one of prices without a bill, and
`focus-validator` (a package of the FinOps Foundation) judges all three files. It needs older
libraries than ours, so it lives in an environment of its own, which is made if DIR is not there:
that takes the network. The rules that fail are printed and written to
`docs/figures/focus-validator.json`. The command ends with 1 if one fails on ours that does not fail
on the bill.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from datetime import UTC, datetime, timedelta
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RESULT = REPOSITORY / "docs" / "figures" / "focus-validator.json"
PACKAGES = ("focus-validator==1.0.0", "multimethod<2")
"""The second is for pandera, on which the first is built."""
VERSION = "1.0"
"""The latest version of FOCUS that it knows."""
PRICES = """
version: 1
name: sample
currency: USD
prices:
- {line: nodes, service: Cloud Spanner, unit: node_hour, price: "0.90", quantity: 3,
   region: us-east1, drivers: {tasks: 80}}
bill:
  rules:
  - {line: all, match: {ServiceName: "*"}, drivers: {tasks: 80}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bill", type=Path, help="a CSV file in columns of FOCUS")
    parser.add_argument("--environment", type=Path, required=True, metavar="DIR",
                        help="of the validator, outside of the tree")  # fmt: skip
    options = parser.parse_args()
    environment = installed(options.environment.absolute())
    with tempfile.TemporaryDirectory() as scratch:
        bill = options.bill.absolute()
        billed, priced = reports(bill, Path(scratch))
        fails = {
            name: sorted(failing(validated(path, environment)))
            for name, path in (("bill", bill), ("ours", billed), ("ours_without_a_bill", priced))
        }
    found = {"validator": PACKAGES[0], "focus": VERSION, "fails": fails}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    worse = {*fails["ours"], *fails["ours_without_a_bill"]} - set(fails["bill"])
    if worse:
        sys.exit(f"fails on ours alone: {', '.join(sorted(worse))}")


def installed(environment: Path) -> Path:
    """Make the environment, unless it is there."""
    if not environment.exists():
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return environment


def reports(bill: Path, folder: Path) -> list[Path]:
    """Make the cost reports of a bill and of prices, and return the `focus.csv` of each."""
    first, end = months(bill)
    (folder / "prices.yaml").write_text(PRICES)
    work(folder / "usage", first, end)
    paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'spark'}"
    for out, more in (("billed", ["--bill", bill]), ("priced", [])):
        subprocess.run(
            [sys.executable, "-m", "late", "report", "cost", "--usage", folder / "usage",
             "--from", f"{first:%Y-%m}", "--to", f"{end:%Y-%m}", "--by", "owner", *more,
             "--prices", folder / "prices.yaml", "--tz", "UTC", "--out", folder / out],
            check=True, cwd=folder, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
    return [folder / out / "focus.csv" for out in ("billed", "priced")]


def months(bill: Path) -> tuple[datetime, datetime]:
    """Return the first month in which something was charged, and the one behind the last."""
    with bill.open(encoding="utf-8", newline="") as file:
        starts = [row["ChargePeriodStart"] for row in csv.DictReader(file)]
    first, last = (datetime.fromisoformat(each).replace(tzinfo=UTC, day=1, hour=0)
                   for each in (min(starts), max(starts)))  # fmt: skip
    return first, (last + timedelta(days=32)).replace(day=1)


def work(folder: Path, first: datetime, end: datetime) -> None:
    """Write usage of two queues for each day."""
    sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "spark")]
    from tests.spark import usage_kit

    days = [first + timedelta(days=n) for n in range((end - first).days)]
    usage_kit.write(
        [usage_kit.row(f"{day:%Y-%m-%d}T12:00:00Z", queue, "send", "done", count, owner=owner)
         for day in days for queue, owner, count in (("mail", "growth", 3), ("pay", "money", 7))],
        folder,
    )  # fmt: skip


def validated(path: Path, environment: Path) -> str:
    """Return what the validator says of a file."""
    # It looks for its list of currencies in the working directory.
    [packages] = environment.glob("lib/python*/site-packages")
    done = subprocess.run(
        [environment / "bin" / "focus-validator", "--data-file", path,
         "--validate-version", VERSION],
        capture_output=True, text=True, cwd=packages, check=False,
    )  # fmt: skip
    if "Validation " not in done.stdout:
        sys.exit(f"the validator did not run: {(done.stderr or done.stdout)[-400:]}")
    return done.stdout


def failing(said: str) -> list[str]:
    """Return each rule that fails."""
    return re.findall(r"^\s*(\w+) failed:", said.partition("Errors encountered:")[2], re.MULTILINE)


if __name__ == "__main__":
    main()
