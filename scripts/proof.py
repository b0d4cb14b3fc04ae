#!/usr/bin/env python3
"""Writes the figures of `docs/figures/{defects,soak,chaos,drills}.json` into
`docs/proof.md`.

make defects ARGS=--save
make soak ARGS="--save docs/figures/soak.json"
make chaos
make drills ARGS=--save
python -m scripts.proof
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from tests.chaos import figures

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "proof.md"
RESULTS = ROOT / "docs" / "figures"


def read() -> dict[str, Any]:
    """Read the kept results, by the mark where each is shown."""
    files = {"defects": RESULTS / "defects.json", "soak": RESULTS / "soak.json"}
    files["chaos"] = figures.FILE
    files["drills"] = RESULTS / "drills.json"
    return {mark: json.loads(file.read_text()) for mark, file in files.items()}


def page(text: str, kept: dict[str, Any]) -> str:
    """`text` with what lies between its marks made anew."""
    sections = (
        ("defects", _defects(kept["defects"])),
        ("soak", _soak(kept["soak"])),
        ("chaos", figures.table(kept["chaos"]) + "\n"),
        ("drills", _drills(kept["drills"])),
    )
    for mark, made in sections:
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        text, found = re.subn(pattern, lambda m, made=made: m[1] + made + m[2], text, flags=re.S)
        assert found == 1, f"docs/proof.md has no mark for {mark}"
    return text


def _defects(results: dict[str, Any]) -> str:
    rows = results["defects"]
    caught = [row for row in rows if row["caught"]]
    worlds = [row["worlds"] for row in caught if row["worlds"]]
    lines = [
        f"**{len(caught)}/{len(rows)} caught**; {len(worlds)} of them by the simulator, in "
        f"{statistics.median(worlds):g} worlds in the median and {max(worlds)} at most."
        f"{results.get('note', '')}",
        "",
        "| defect | what is broken | found by | worlds |",
        "|---|---|---|---|",
    ]
    for row in rows:
        name = row["found_by"].partition("::")[2]
        by = f"`{name}`" if name else f"simulator ({row['found_by']}): {_invariant(row['reason'])}"
        mark = "" if row["caught"] else " **not found**"
        lines.append(f"| {row['defect']} | {row['what']} | {by}{mark} | {row['worlds'] or ''} |")
    return "\n".join(lines) + "\n"


def _invariant(reason: str) -> str:
    found = re.search(r"[SE]\d+(?=:)|Spinning", reason)
    return found[0] if found else "?"


def _soak(n: dict[str, Any]) -> str:
    profiles = ", ".join(f"{name} {count:,}" for name, count in n["profiles"].items())
    faults = ", ".join(f"{name} {count:,}" for name, count in n["faults"].items())
    return (
        f"**{n['worlds']:,} worlds, {len(n['broke'])} broke** (seeds from {n['first']:,} on): "
        f"{n['virtual_seconds'] / 3600:,.1f} hours of virtual time, {n['transactions']:,} "
        f"transactions, {n['tasks']:,} tasks, {n['starts']:,} starts, {n['steps']:,} steps, "
        f"in {n['seconds']:,} s.\n\n"
        f"- Databases: {profiles}.\n- Faults: {faults}.\n"
    )


def _drills(kept: dict[str, Any]) -> str:
    lines = [
        "| drill | overview | `late top` | `late doctor` | alert | runbook | load |",
        "|---|--:|--:|--:|---|---|--:|",
    ]
    for name, found in kept.items():
        said = found["said"]
        cells = " | ".join(f"{said[who]} s" for who in ("overview", "top", "doctor"))
        runbook = f"[{found['runbook']}](runbooks/{found['runbook']}.md)"
        alert = f"`{found['alert']}` {said['alert']} s"
        lines.append(f"| {name} | {cells} | {alert} | {runbook} | {found['load']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(), read()))


if __name__ == "__main__":
    main()
