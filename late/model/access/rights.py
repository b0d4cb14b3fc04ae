"""The sender of a request and its rights. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from late.errors import ConfigError
from late.model import validation as validate

Scope = Literal["enqueue", "consume", "view", "operate"]
"""The purposes of a token. `view` allows the page; `operate` allows its commands for queues, and
`/metrics`."""
SCOPES: tuple[Scope, ...] = ("enqueue", "consume", "view", "operate")
Role = Literal["view", "operate", "admin"]
"""The roles of a person. Each contains those before it."""
ROLES: tuple[Role, ...] = ("view", "operate", "admin")
ALL = ("*",)


class Right(msgspec.Struct, frozen=True):
    """One scope or role, for some queues and lanes."""

    word: Scope | Role
    queues: tuple[str, ...] = ALL
    """Patterns with `*`. A queue must match one of them."""
    lanes: tuple[str, ...] = ()
    """Lanes whose shards may be looked at; with all queues, all are."""


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request, with its rights."""

    name: str
    """Unique among callers of all kinds; a token's is its own name."""
    rights: tuple[Right, ...]
    digest: str = ""
    """The hash of its token. With another one it is another caller, also under the same name."""
    actor: str = ""
    """The name in the audit."""
    expires_at_us: int | None = None
    """The end of an identity that no row of `late_token` holds; None for a token."""
    session: str = ""
    """The page's session of a person, if that is how the person came."""

    def may(self, word: Scope | Role, queue: str | None = None) -> bool:
        """Tell whether it has the scope or role: for this queue, or for any when None."""
        return any(
            right.word == word and (queue is None or _matches(queue, right.queues))
            for right in self.rights
        )

    def may_all(self, word: Scope | Role) -> bool:
        """Tell whether it has the scope or role for every queue, those of later too."""
        return any(right.word == word and "*" in right.queues for right in self.rights)

    @property
    def lanes(self) -> frozenset[str]:
        """The lanes that any of its rights is for, by name."""
        return frozenset(lane for right in self.rights for lane in right.lanes)

    def sees(self, queue: str) -> bool:
        """Tell whether any of its rights is for this queue."""
        return any(_matches(queue, right.queues) for right in self.rights)

    @property
    def outside(self) -> bool:
        """True if an identity provider vouches for it, and no row of `late_token`."""
        return self.expires_at_us is not None


def _matches(queue: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(queue, pattern) for pattern in patterns)


def implied(word: Scope | Role) -> tuple[Scope | Role, ...]:
    """The scope or role itself, and the roles that it contains."""
    return tuple(ROLES[: ROLES.index(word) + 1]) if word in ROLES else (word,)


def of_token(scopes: Iterable[Scope], queues: tuple[str, ...]) -> tuple[Right, ...]:
    """The rights of a token. One that may `operate` every queue administers: it always could."""
    words: dict[Scope | Role, None] = {}
    for scope in scopes:
        whole: Scope | Role = "admin" if scope == "operate" and "*" in queues else scope
        words.update(dict.fromkeys(implied(whole)))
    return tuple(Right(word, queues) for word in words)


def check_patterns(queues: Iterable[str]) -> None:
    """Raise `ConfigError` for a pattern of queues that is no name with `*` in it."""
    for pattern in queues:
        if pattern != "*" and not validate.is_name(pattern.replace("*", "x")):
            raise ConfigError(
                f"queue pattern {pattern[:80]!r}: a name in which * stands for any text"
            )


ANYBODY = Caller("anybody", of_token(SCOPES, ALL), actor="anybody@page")
"""The caller if no token is required, which is possible on this machine only."""
NOBODY = Caller("", ())
