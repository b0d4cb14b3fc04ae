"""Under all floods at once, 200 honest clients lose nothing, and are told when to come again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.attack.honest import COUNTS
from tests.attack.table import Row
from tests.attack.target import MIB, Target

SETTLED_S = 30


def run(target: Target, seconds: float = 30.0, only: Sequence[str] = ()) -> list[Row]:
    honest, floods = target.row(f"{sum(COUNTS.values())} honest clients"), target.row("all floods")
    floods.attack = "all floods at once, for honest clients to bear"
    honest.attack += " under all floods: HTTP, gRPC, the page"
    before = target.metric("late_connections_refused_total")
    done_before = _done(target)
    with target.watched(honest):
        clients = _start("honest", target, seconds + 2)
        assert clients.stdout is not None
        if clients.stdout.readline() != b"ready\n":
            raise SystemExit("the honest clients do not start")
        honest.notes.append(f"memory {target.memory // MIB} MiB with honest clients alone")
        flood = _start("floods", target, seconds, *only)
        said, _ = flood.communicate(timeout=seconds + 60)
        heard, _ = clients.communicate(timeout=seconds + 300)
    for name, count in json.loads(said).items():
        floods.inputs += count
        floods.outcomes[name] = count
    ended = target.metric("late_connections_refused_total") - before
    floods.notes.append(f"{ended:,.0f} connections refused or ended")
    seen = json.loads(heard)
    honest.outcomes.update(seen["outcomes"])
    honest.inputs = honest.outcomes.total()
    honest.wrong += seen["wrong"]
    accepted, done = set(seen["accepted"]), seen["done"]
    honest.notes.append(f"{len(accepted):,} tasks accepted and done once each")
    honest.notes.append(f"slowest answer {seen['slowest_s']:.1f} s")
    if not accepted:
        honest.wrong.append("no task was accepted")
    for text, ids in (
        ("accepted and not done", accepted - done.keys()),
        ("done and not accepted", done.keys() - accepted),
        ("done twice", {each for each, count in done.items() if count > 1}),
    ):
        if ids:
            honest.wrong.append(f"{len(ids)} tasks were {text}, such as {min(ids)}")
    ends = time.monotonic() + SETTLED_S
    while (counted := _done(target) - done_before) < len(done) and time.monotonic() < ends:
        time.sleep(0.1)
    if counted != len(done):
        honest.wrong.append(f"the server counts {counted:g} done, the clients {len(done)}")
    verified = subprocess.run(
        [sys.executable, "-m", "late", "verify", target.url], capture_output=True, check=False
    )
    if verified.returncode:
        honest.wrong.append(f"late verify: {verified.stdout.decode()[-300:]}")
    return [honest, floods]


def _done(target: Target) -> float:
    """The tasks of honest clients that ended as done, by the server's count."""
    return target.metric('late_outcomes_total{[^}]*queue="honest"[^}]*outcome="done"[^}]*}')


def _start(name: str, target: Target, seconds: float, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"tests.attack.{name}", target.as_json(), str(seconds), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE)
