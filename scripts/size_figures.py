"""Writes `late/model/size/figures.py` from a run of `make bench-steady`.

    python -m scripts.size_figures docs/figures/steady.json [docs/figures/steady-bytes.json]

Bytes and rows do not depend on the processor: a second run, which may be longer and of a machine
with other work, brings them, and processor times stay those of the first. A store that no run has
measured keeps its figures, and so does a figure that the run was too short for. A test compares
file and writer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.steady.figures import filled, fit, with_bytes
from late.model.size.estimate import RateFigures, StoreFigures

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "late" / "model" / "size" / "figures.py"
HEAD = '''"""The constants of `late size`, by store: written by `scripts/size_figures.py`."""

from __future__ import annotations

from late.model.size.estimate import RateFigures, StoreFigures

'''
DIGITS = 4
"""Significant digits: more would claim what no run repeats."""


def source(figures: Mapping[str, StoreFigures]) -> str:
    """Return the module as it should be, not yet formatted."""
    entries = "".join(f"{name!r}: {_text(one)},\n" for name, one in sorted(figures.items()))
    return f"{HEAD}FIGURES: dict[str, StoreFigures] = {{\n{entries}}}\n"


def _text(value: Any) -> str:
    if isinstance(value, StoreFigures | RateFigures):
        given = msgspec.structs.asdict(value).items()
        fields = ", ".join(f"{name}={_text(v)}" for name, v in given if v is not None)
        return f"{type(value).__name__}({fields})"
    if isinstance(value, tuple):
        return f"({''.join(_text(one) + ', ' for one in value)})"
    return repr(float(f"{value:.{DIGITS}g}")) if isinstance(value, float) else repr(value)


def formatted(text: str) -> str:
    """Format Python as `make format` does."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    from late.model.size.figures import FIGURES

    found, *more = (fit(json.loads(Path(each).read_text())) for each in arguments)
    for of_bytes in more:
        found = {
            store: with_bytes(one, of_bytes[store]) if store in of_bytes else one
            for store, one in found.items()
        }
    found = {
        store: filled(one, FIGURES[store]) if store in FIGURES else one
        for store, one in found.items()
    }
    FILE.write_text(formatted(source(FIGURES | found)))
    print(f"set: {', '.join(sorted(found)) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
