"""Run the tests of defects, each in a fork: `python -m tests.defects.in_forks D7 D8`.

To import pytest, late and the defects takes longer than most of the tests. Here that is done once.
Prints a line of JSON for each: the exit code of pytest, its output, and the seconds that it took.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.defects.catching import LIMIT_S, OPTIONS
from tests.defects.registry import DEFECTS
from tests.support.forks import pytest_in_fork

PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
"""Each fork would load all that are installed."""


def main(names: list[str]) -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.txt")
        for defect in map(DEFECTS.__getitem__, names):
            began = time.monotonic()
            code = pytest_in_fork(
                partial(os.environ.update, defect.environment(broken=True)),
                [*PLUGINS, *OPTIONS, defect.test],
                str(output),
                LIMIT_S,
            )
            took_s = time.monotonic() - began
            print(json.dumps([code, output.read_text(errors="replace"), took_s]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
