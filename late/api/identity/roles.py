"""`--role`: which rights a claim of an identity provider gives. Pure.

A rule is `KIND:VALUE=WORDS[:QUEUES]`, such as `group:shop=operate:orders,refunds`. Rights of all
rules that match add up; nobody has a right without a rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from late.errors import ConfigError
from late.model import validation as validate
from late.model.access.rights import ALL, ROLES, SCOPES, Right, Role, Scope, check_patterns, implied

Kind = Literal["group", "user", "service", "scope"]
"""The subject of a rule: a person's group or name, a service's `sub`, or one of its scopes."""
KINDS: tuple[Kind, ...] = get_args(Kind)
PEOPLE: tuple[Kind, ...] = ("group", "user")
LANE = "lane="
_LANES = re.compile(r"(?<=[:,])( *)lane=")
"""It names a lane where a queue may stand; elsewhere it is part of a word: `controlplane=admin`."""
FILE_BYTES = 256 * 1024
FORM = "KIND:VALUE=ROLE[:QUEUES], such as group:shop=operate:orders,refunds"


class Claim(msgspec.Struct, frozen=True):
    """One thing that a provider says of a caller."""

    kind: Kind
    value: str


class RoleRule(msgspec.Struct, frozen=True):
    """One rule."""

    claim: Claim
    rights: tuple[Right, ...]


def parse(text: str) -> RoleRule:
    """Parse one rule.

    The value may contain `:` and `=`: the rights are behind the last `=` but that of `lane=`.

    Raises:
        ConfigError: it has another form.
    """
    kind, colon, rest = text.strip().partition(":")
    body = _LANES.sub("\\1lane\0", rest)
    body = body if "=" in body else rest
    value, equals, granted = body.rpartition("=")
    if not (colon and equals and value.strip()) or kind not in KINDS:
        raise ConfigError(f"--role {text[:120]!r}: {FORM}; kinds are {', '.join(KINDS)}")
    words, limited, places = granted.partition(":")
    chosen = [word.strip() for word in words.split("+")]
    allowed = ROLES if kind in PEOPLE else (*SCOPES, "admin")
    wrong = [word for word in chosen if word not in allowed]
    if wrong:
        raise ConfigError(f"--role {text[:120]!r}: {wrong[0]!r} is none of {', '.join(allowed)}")
    queues, lanes = _places(text, places.replace("lane\0", LANE)) if limited else (ALL, ())
    words_of = dict.fromkeys(w for word in chosen for w in implied(_word(word)))
    rights = tuple(Right(word, queues, lanes) for word in words_of)
    return RoleRule(Claim(_kind(kind), value.strip().replace("lane\0", LANE)), rights)


def _places(text: str, places: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    each = [part.strip() for part in places.split(",")]
    lanes = tuple(part.removeprefix(LANE) for part in each if part.startswith(LANE))
    queues = tuple(part for part in each if not part.startswith(LANE))
    for lane in lanes:
        if not validate.is_name(lane):
            raise ConfigError(f"--role {text[:120]!r}: {lane[:40]!r} is no name of a lane")
    check_patterns(queues)
    return queues, lanes


def _word(text: str) -> Scope | Role:
    return next(word for word in (*SCOPES, *ROLES) if word == text)


def _kind(text: str) -> Kind:
    return next(kind for kind in KINDS if kind == text)


def read(path: str) -> list[str]:
    """Read the rules of a file: one a line; empty lines and those that begin with `#` are skipped.

    Raises:
        ConfigError: it cannot be read, or is too long.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES + 1)
        lines = content.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--roles-file {path[:200]}: {error}") from None
    if len(content) > FILE_BYTES:
        raise ConfigError(f"--roles-file {path[:200]}: above {FILE_BYTES} bytes")
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


class RoleMap:
    """Maps the names and groups of callers to their rights."""

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._rights: dict[Claim, tuple[Right, ...]] = {}
        for rule in map(parse, rules):
            known = self._rights.get(rule.claim, ())
            self._rights[rule.claim] = tuple(dict.fromkeys((*known, *rule.rights)))

    def __bool__(self) -> bool:
        return bool(self._rights)

    def known(self, claims: Iterable[Claim]) -> tuple[Claim, ...]:
        """The claims that a rule is about, each once."""
        return tuple(each for each in dict.fromkeys(claims) if each in self._rights)

    def rights(self, claims: Sequence[Claim]) -> tuple[Right, ...]:
        """The rights of whoever has these claims; empty if no rule is about any."""
        found = (right for each in claims for right in self._rights.get(each, ()))
        return tuple(dict.fromkeys(found))
