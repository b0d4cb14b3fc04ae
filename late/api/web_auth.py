"""Who may see the page: the same callers, tokens and certificates as for the interfaces."""

from __future__ import annotations

from urllib.parse import urlsplit

from late.api import errors as failures
from late.api import limits
from late.api.auth import Access
from late.api.errors import Forbidden
from late.model.tokens import Caller


class Gate:
    """`Access` as a request over HTTP meets it."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def open(self) -> bool:
        """Whether everybody on this machine is let in."""
        return self._access.open

    def admit(
        self, authorization: str | None, host: str | None, certificate: tuple[str, ...]
    ) -> Caller:
        """Who asks.

        Raises:
            Forbidden: without tokens, under a name that is not this machine's.
            Unauthenticated, TooMany: see `Access.admit`.
        """
        if self._access.open:
            # A page in a browser must not reach what only this machine may ask, under a name of
            # its own that leads here.
            name = urlsplit(f"//{host or 'localhost'}").hostname or ""
            if not limits.loopback(name):
                raise Forbidden("without tokens only the names of this machine are served")
        return self._access.admit(authorization, certificate)

    def told(self, error: Exception) -> tuple[int, str]:
        """Status and message of an error; what the database said stays inside."""
        code = failures.code_of(error)
        return code.http, failures.message_of(error, code)
