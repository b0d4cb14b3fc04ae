"""Finds Chromium, or brings it: `python scripts/browser.py [--install]`.

The tests of the page and its pictures need a real browser. Debian's package `chromium` is
installed where this runs as root on a machine that has apt; elsewhere it is said how to get one.
`LATE_CHROMIUM` names another one.

Standard library only, as the tests import `find` from here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

VARIABLE = "LATE_CHROMIUM"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
HOW = (
    "install it (Debian, as root: apt-get install chromium; Fedora: dnf install chromium; "
    f"macOS: brew install chromium) or name one in {VARIABLE}"
)
STEP_S = 900
"""A package server that does not answer must not hold up everything behind it for ever."""


def find() -> str | None:
    """The browser's program; None where there is none."""
    given = os.environ.get(VARIABLE)
    if given:
        return shutil.which(given)
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def install() -> bool:
    """Bring it by apt; False where that is not for us to do, or failed."""
    apt = shutil.which("apt-get")
    if apt is None or os.name != "posix" or os.geteuid() != 0:
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = [apt, "install", "--yes", "--no-install-recommends", *PACKAGES]
    # An image comes without lists of packages, and old lists name versions that are gone.
    for command in ([apt, "update"], install):
        print(f"[browser] {' '.join(command)}", flush=True)
        try:
            done = subprocess.run(command, check=False, env=environment, timeout=STEP_S)
        except subprocess.TimeoutExpired:
            print(f"[browser] gave up after {STEP_S} s", file=sys.stderr)
            return False
        if done.returncode and "install" in command:
            return False
    return find() is not None


def main(arguments: Sequence[str]) -> int:
    if arguments not in ([], ["--install"]):
        print("usage: python scripts/browser.py [--install]", file=sys.stderr)
        return 2
    found = find()
    if found is None and arguments and install():
        found = find()
    if found is None:
        print(f"[browser] no Chromium: {HOW}", file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
