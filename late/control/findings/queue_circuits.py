"""Findings about queues whose breaker is open: all of their tasks wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from late.control.findings.model import Finding
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot
from late.model.worker_report import OpenCircuit


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield a finding for each queue whose breaker is open in some worker."""
    told: dict[str, list[OpenCircuit]] = {}
    for each in seen.reports:
        for circuit in each.report.circuits if each.working else ():
            told.setdefault(circuit.queue, []).append(circuit)
    for queue in sorted(told):
        yield _of(queue, told[queue], seen.status.now_us)


def _of(queue: str, told: list[OpenCircuit], now_us: int) -> Finding:
    calls, failed = sum(each.calls for each in told), sum(each.failed for each in told)
    since_us = min(each.since_us for each in told)
    last = max(told, key=lambda each: each.error_at_us)
    parts = [f"{failed / calls:.0%} of its last {calls} attempts failed."] if calls else []
    if last.error:
        ago = age(max(0.0, (now_us - last.error_at_us) / 1e6))
        parts.append(f"The last error, {ago} ago: {last.error}.")
    where = f"{len(told)} workers" if len(told) > 1 else "one worker"
    parts.append(
        f"Its circuit is open for {age(max(0.0, (now_us - since_us) / 1e6))}, in {where}: all tasks"
        " of the queue wait there, whatever their limit key, and single ones find out whether it"
        " works. They lose no attempt. What helps: mend what fails; the command takes the breaker"
        " off."
    )
    return Finding(
        "bad", f"The breaker of queue {queue} is open", " ".join(parts), "queues",
        f"late queue set {queue} breaker=default", since_us,
        queues=frozenset({queue}),
    )  # fmt: skip
