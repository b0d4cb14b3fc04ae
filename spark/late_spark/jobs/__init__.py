"""The reports as jobs of a cluster: `spark-submit …/late_spark/jobs/cost.py --from 2026-03 …`.

`spark-submit` takes a file and no command. Each of these is `late report` with its name, so what it
takes, prints and writes is the same; the session is the cluster's (`session.start`).
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(file: str) -> None:
    """Run the report that `file`, a module of this package, is named after."""
    from late.cli import main as command

    command(["report", Path(file).stem, *sys.argv[1:]])
