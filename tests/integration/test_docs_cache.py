"""The blocks of docs/cache.md run in their order, and print what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "cache.md").read_text()


def test_the_blocks_print_what_they_say(tmp_path: Path) -> None:
    (commands,) = re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
    service, reads = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
    (tmp_path / "late").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m late.cli "$@"\n')
    (tmp_path / "late").chmod(0o755)
    (tmp_path / "shop.py").write_text(service)
    (tmp_path / "reads.py").write_text(reads)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(
        ["sh", "-ec", f'{commands}\n"{sys.executable}" reads.py > said'],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^print\(.*\)  # (.*)$", reads, re.M)
    assert len(said) == 4
    assert (tmp_path / "said").read_text().splitlines() == said
