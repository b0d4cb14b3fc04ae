"""Refuses secrets in the tree: `python scripts/check_secrets.py [FILE ...]`.

detect-secrets reads every tracked file that is text. What looks like a secret and is none is in
`KNOWN`, with the reason. A finding is named by its line and kind, never by its text.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (".lock", ".png", ".svg", ".webp")
"""Hashes of packages, and pictures."""
MADE_UP = "a password of tests, which look for it where it must not be"
EXAMPLE = "the example of the Standard Webhooks specification"
NAME = "the name of what holds a secret"
KNOWN = {
    "4bf92f3577b34da6": "the example of a trace in the specification of W3C",
    "LATE_WAKE_SECRET": NAME,
    "any": MADE_UP,
    "env:MINE": NAME,
    "env:NODE_SECRET": NAME,
    "hunt": MADE_UP,
    "hunter2": MADE_UP,
    "hunter2 with spaces": MADE_UP,
    "keda-late-tls": NAME,
    "late-database": NAME,
    "late-scaler-tls": NAME,
    "late-scaler-tls, defaultMode: 0440}": NAME,
    "late-serve-tls": NAME,
    "late-serve-tls, defaultMode: 0440}": NAME,
    "late_secret": NAME,
    "s3cret%zz": MADE_UP,
    "secret": MADE_UP,
    "sesame": MADE_UP,
    "tiger": MADE_UP,
    "whsec_": "the beginning of every key of webhooks",
    "whsec_...": "the beginning of every key of webhooks",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": EXAMPLE,
}


def findings(path: str) -> list[str]:
    """Return one line for each finding in a file that `KNOWN` does not explain."""
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    found = SecretsCollection()
    with default_settings():
        found.scan_file(path)
    return [
        f"{path}:{secret.line_number}: {secret.type}"
        for _, secret in found
        if secret.secret_value not in KNOWN
    ]


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    return [name for name in listed.stdout.decode().split("\0") if name]


def main(arguments: Sequence[str]) -> int:
    names = [name for name in arguments or tracked() if not name.endswith(LEFT_OUT)]
    with ProcessPoolExecutor() as pool:
        found = [line for lines in pool.map(findings, names, chunksize=32) for line in lines]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"secrets: {len(names)} files, {len(found) or 'no'} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
