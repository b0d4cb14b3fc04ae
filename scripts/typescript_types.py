"""Write the types of the TypeScript client: examples/typescript/late/schema.d.ts.

    python -m scripts.typescript_types

openapi-typescript makes them from the part of docs/openapi.json that producers and consumers use,
at the version in the lock file: `npm ci` in examples/typescript installs it. The first line has the
digest of that part, so a test without npm finds types that are out of date.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.pull_document import ROOT, document

FOLDER = ROOT / "examples" / "typescript"
FILE = FOLDER / "late" / "schema.d.ts"
OPTIONS = ("--empty-objects-unknown", "--default-non-nullable", "false")


def first_line() -> str:
    """Return the line that names the document which the types are made from."""
    digest = hashlib.sha256(json.dumps(document(), sort_keys=True).encode()).hexdigest()
    return f"// By scripts/typescript_types.py from docs/openapi.json, digest {digest[:32]}.\n"


def made(packages: Path) -> str:
    """Make the file's text with the packages in `packages`, a folder `node_modules`."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "openapi.json", Path(folder) / "schema.d.ts"
        source.write_text(json.dumps(document()))
        program = packages / ".bin" / "openapi-typescript"
        command = [str(program), str(source), *OPTIONS, "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=packages.parent)
        return first_line() + target.read_text()


def main() -> int:
    packages = FOLDER / "node_modules"
    if not packages.exists():
        print(f"no {packages.relative_to(ROOT)}: run `npm ci` in examples/typescript first")
        return 1
    FILE.write_text(made(packages))
    print(f"{FILE.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
