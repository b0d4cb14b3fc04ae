"""A process that is held to a part of a processor gets no more of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import quota

SPIN = "while True: pass"


def test_a_process_is_held_or_it_is_said_that_it_cannot_be() -> None:
    """Processor time is counted, not speed: a busy machine gives less of it, never more."""
    with subprocess.Popen([sys.executable, "-c", SPIN]) as process:
        try:
            with contextlib.suppress(quota.NoQuota), quota.held(0.25) as put:
                put(process.pid)
                assert "late-bench" in Path(f"/proc/{process.pid}/cgroup").read_text()
                used_s, began_s = _used_s(process.pid), time.monotonic()
                time.sleep(1.0)
                used_s = _used_s(process.pid) - used_s
                assert used_s <= 0.25 * (time.monotonic() - began_s) + 0.1
                process.kill()
                process.wait()
        finally:
            process.kill()
    root = quota.ROOT / "cpu" if (quota.ROOT / "cpu").is_dir() else quota.ROOT
    assert not list(root.glob(f"late-bench-{os.getpid()}-*")), "nothing is left behind"


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_control_groups_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "ROOT", tmp_path / "nothing")
    with pytest.raises(quota.NoQuota), quota.held(0.5):
        pass
