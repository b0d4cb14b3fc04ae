"""The types of the public names, as a user's type checker sees them."""

from __future__ import annotations

from pathlib import Path

from mypy import api

TYPED = Path(__file__).with_name("typed_calls.py")
CACHE = Path(__file__).parents[2] / ".mypy_cache" / "users"


def test_calls_are_checked_against_the_handler_s_signature() -> None:
    # Without the project's settings: a user has others. Unused ignores are errors, so that every
    # mistake in the file must be found.
    options = ["--config-file=", "--strict", "--follow-imports=silent", f"--cache-dir={CACHE}"]
    out, err, status = api.run([*options, str(TYPED)])
    assert status == 0, out + err
