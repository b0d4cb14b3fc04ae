"""The names of a client in its verified certificate, by one rule for HTTP and gRPC. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

KINDS = ("DNS", "URI")
"""Kinds of alternative names that count. An address, or the local part of an e-mail address, may
be what others can get a certificate for."""


def names_in(alternative: Sequence[tuple[str, str]], common: Iterable[str]) -> tuple[str, ...]:
    """Return the names by which a token is looked up.

    Args:
        alternative: kind and value of each alternative name.
        common: the common names. They count only if there is no alternative name at all: an
            authority that checks alternative names may leave the common name to the client.
    """
    names = [value for kind, value in alternative if kind in KINDS]
    return tuple(dict.fromkeys(names if alternative else common))


def names_of(certificate: Any) -> tuple[str, ...]:
    """Return the names in a certificate as Python's `ssl` shows it; none without one."""
    if not certificate:
        return ()
    common = [
        value
        for part in certificate.get("subject", ())
        for kind, value in part
        if kind == "commonName"
    ]
    return names_in(certificate.get("subjectAltName", ()), common)


def names_of_peer(about: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Return the names in the certificate of a gRPC call's `auth_context`; none without one."""
    properties = (
        ("DNS", "peer_dns"),
        ("URI", "peer_uri"),
        ("any", "x509_subject_alternative_name"),
    )
    alternative = [
        (kind, value.decode("utf-8", "replace"))
        for kind, name in properties
        for value in about.get(name, ())
    ]
    common = [value.decode("utf-8", "replace") for value in about.get("x509_common_name", ())]
    return names_in(alternative, common)
