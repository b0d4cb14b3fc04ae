"""Admit visitors of the page: the same callers, tokens and certificates as for the interfaces."""

from __future__ import annotations

from urllib.parse import urlsplit

from late.api import errors, limits
from late.api.auth import Access
from late.api.errors import Forbidden
from late.model.rights import Caller


class Gate:
    """`Access` for requests over HTTP."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def open(self) -> bool:
        """Everybody on this machine is admitted."""
        return self._access.open

    def admit(
        self,
        authorization: str | None,
        host: str | None,
        certificate: tuple[str, ...],
        *,
        address: str,
        interface: str = "page",
    ) -> Caller:
        """Return the caller of a request from `address`.

        Raises:
            Forbidden: tokens are off, and the `Host` header is not a name of this machine.
            Unauthenticated, TooMany: see `Access.admit`.
        """
        if self._access.open:
            # A strange web page must not reach this server from the user's browser through a
            # name of its own that resolves to this machine (DNS rebinding).
            name = urlsplit(f"//{host or 'localhost'}").hostname or ""
            if not limits.loopback(name):
                raise Forbidden("without tokens only the names of this machine are served")
        return self._access.admit(authorization, certificate, interface=interface, address=address)

    def check_address(self, address: str) -> None:
        """Raise `TooMany` if too many sign-ins from this address have failed."""
        self._access.failures.check(address)

    async def over(self, caller: Caller) -> None:
        """Wait until the caller's token is not valid any more."""
        await self._access.over(caller)

    def check(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the token of a caller that was admitted is over by now."""
        self._access.check(caller)

    def told(self, error: Exception) -> tuple[int, str]:
        """Status and message of an error; messages of the database are not shown."""
        code = errors.code_of(error)
        return code.http, errors.message_of(error, code)
