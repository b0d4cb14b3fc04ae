"""Mistakes in the environment that nothing else notices: misspelt variables, another database.

A file may have only keys that are known. The environment belongs to everybody: a service may have
variables of its own that begin with `LATE_`, and Kubernetes makes some for each of its services
(`LATE_SERVE_PORT=tcp://...`). So nothing is refused here, and only what resembles a known variable
is told.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from late.cli.config import catalogue

if TYPE_CHECKING:
    from sqlalchemy import URL

OTHERS = frozenset(
    {
        "LATE_ACTOR",
        "LATE_CONFIG",
        "LATE_OIDC_CLIENT_SECRET",
        "LATE_POSTGRES_URL",
        "LATE_TARGETS",
        "LATE_TOKEN",
        "LATE_URL",
        "LATE_WAKE",
        "LATE_WAKE_SECRET",
    }
)
"""Variables that are no setting of a command."""
_OWN = frozenset({"LATE_HEALTH_FD", "LATE_PARENT_FD", "LATE_PROCESS"})
"""Variables that a parent gives to its children."""
_OF_OTHERS = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)=.*|\w+_PORT=\w+://.*"
    r"|LATE_TEST_\w+=.*"
)
"""Variables of Kubernetes, and of our own tests, whose processes run commands."""
_NEAR = 0.8
"""The least likeness of two names. `LATE_LEASE_TTL` and `LATE_LEASE_TTL_S` have 0.93."""


@functools.cache
def known() -> frozenset[str]:
    """Return all variables that some command of `late` reads."""
    found = {each.variable for some in catalogue.sections().values() for each in some.values()}
    found |= catalogue.option_variables()
    return frozenset(name for name in found if name is not None) | OTHERS | _OWN


def misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that is none of `late`, and resembles one."""
    for name in sorted(environ):
        if not name.startswith("LATE_") or name in known():
            continue
        if _OF_OTHERS.fullmatch(f"{name}={environ[name]}"):
            continue
        if near := difflib.get_close_matches(name, known(), n=1, cutoff=_NEAR):
            yield f"{name} is no variable of late and is not read; did you mean {near[0]}?"


def other_database(app_url: str, named: str | None) -> str | None:
    """Return a line if commands use another database than a worker, which uses that of its app.

    Only the kind and the name of the database are compared. Two addresses may well lead to one
    server: the app may connect through a pooler, and commands without it.
    """
    from late.errors import ConfigError
    from late.schema.engine import parse, shown

    if not named:
        return None
    try:
        ours, theirs = parse(app_url), parse(named)
    except ConfigError:
        return None  # Whoever opens it says so.
    if _name(ours) == _name(theirs):
        return None
    return (
        f"LATE_URL, or url in late.toml, names {shown(named)}, and the app {shown(app_url)}. This "
        "process uses the app's; commands such as late status use the other one"
    )


def _name(url: URL) -> tuple[str, str | None]:
    kind, name = url.get_backend_name(), url.database
    return kind, os.path.abspath(name) if kind == "sqlite" and name else name
