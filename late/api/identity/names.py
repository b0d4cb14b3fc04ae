"""Names of callers whom an identity provider vouches for. Pure."""

from __future__ import annotations

from urllib.parse import quote

NAME_MAX = 200
JWT_MAX = 8 * 1024


def is_name(value: object) -> bool:
    """Tell whether a text can stand for somebody in the audit: one line, of a bounded length."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= NAME_MAX
        and value.isprintable()
        and value == value.strip()
    )


def name_of(kind: str, subject: str) -> str:
    """A caller's name, which no token can have: consumers and forms are known by it."""
    return f"{kind}={quote(subject, safe='').replace('~', '%7E')}"


def is_jwt(text: str) -> bool:
    """Tell whether a bearer token has the form of a JWT; one of `late token` begins otherwise."""
    return (
        not text.startswith("late.")
        and len(text) <= JWT_MAX
        and text.count(".") == 2
        and text.isascii()
    )
