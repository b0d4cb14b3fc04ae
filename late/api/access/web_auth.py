"""Admit visitors of the page, and callers over HTTP.

The page takes what the interfaces take (tokens, JWTs and certificates), and people besides: by the
session of a sign-in, or by the header of a trusted proxy. The interfaces do not: a session is a
cookie, and a browser sends it also where another site asks it to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from late import events
from late.api import errors, limits
from late.api.access.auth import Access
from late.api.errors import BadRequest, Forbidden, NotBegun, Unauthenticated
from late.api.identity.proxy import TrustedProxy
from late.concurrency import in_thread
from late.control import Control, audit
from late.errors import StoreError
from late.model.access.rights import Caller

if TYPE_CHECKING:
    from late.api.identity.people import People

logger = logging.getLogger("late.api")


class Gate:
    """`Access` for requests over HTTP.

    Args:
        people: signs people in; None without a provider.
        proxy: knows people by a header; None without a trusted proxy.
        control: keeps the end of sessions, for the other processes.
    """

    def __init__(
        self,
        access: Access,
        *,
        people: People | None = None,
        proxy: TrustedProxy | None = None,
        control: Control | None = None,
    ) -> None:
        self._access = access
        self._people = people
        self._proxy = proxy
        self._control = control

    @property
    def open(self) -> bool:
        """Everybody on this machine is admitted."""
        return self._access.open

    @property
    def signs_in(self) -> bool:
        """There is a provider at which people sign in."""
        return self._people is not None

    async def prepare(self, authorization: str | None) -> None:
        """See `Access.prepare`."""
        await self._access.prepare(authorization)

    def admit(
        self,
        authorization: str | None,
        host: str | None,
        certificate: tuple[str, ...],
        *,
        address: str,
        interface: str = "page",
        session: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Caller:
        """Return the caller of a request from `address`.

        A trusted proxy's word counts before all else, because it passes on what browsers send.

        Args:
            session: the cookie of a sign-in.
            headers: all of the request, for the proxy's.

        Raises:
            Forbidden: tokens are off, and the `Host` header is not a name of this machine; or the
                person has no role.
            BadRequest: see `TrustedProxy.caller`.
            Unauthenticated, TooMany: see `Access.admit`.
        """
        access = self._access
        if access.open:
            # A strange web page must not reach this server from the user's browser through a
            # name of its own that resolves to this machine (DNS rebinding).
            name = urlsplit(f"//{host or 'localhost'}").hostname or ""
            if not limits.loopback(name):
                raise Forbidden("without tokens only the names of this machine are served")
        found = None
        if self._proxy is not None:
            found = self._proxy.caller(address, headers, access.now_us)
        if found is None and self._people is not None and authorization is None:
            found = self._people.caller(session, access.now_us)
        if found is not None:
            access.check(found)
            return access.paced(found)
        return access.admit(authorization, certificate, interface=interface, address=address)

    def check_address(self, address: str) -> None:
        """Raise `TooMany` if too many sign-ins from this address have failed."""
        self._access.failures.check(address)

    async def begin(self, path: str) -> tuple[str, str]:
        """Begin a sign-in; see `People.begin`."""
        return await self._provider.begin(path, self._access.now_us)

    async def finish(
        self, sent: Mapping[str, str], cookie: str | None, *, address: str
    ) -> tuple[str, str]:
        """End a sign-in; return the session's cookie and the page to go to.

        Raises:
            TooMany: too many sign-ins from this address have failed.
        """
        self.check_address(address)
        try:
            session, made, path = await self._provider.finish(sent, cookie, self._access.now_us)
        except NotBegun:
            # Nobody is asked, and nothing was guessed. Any web page can send a browser here, and
            # behind a proxy all have its address: it must not keep others from signing in.
            raise
        except (BadRequest, Unauthenticated):
            self._access.failures.add("page", address, "")
            raise
        events.default.emit(events.SIGNED_IN, person=f"oidc:{session.name}", address=address)
        return made, path

    async def sign_out(self, caller: Caller) -> None:
        """End a person's session here, and within seconds at the other processes."""
        if not caller.session:
            return
        await self._access.end_session(caller.session)
        if self._control is not None:
            try:
                with audit.acting(caller.actor):
                    await in_thread(
                        self._control.audit.record,
                        audit.SESSION_END,
                        f"session:{caller.session}",
                    )
            except StoreError as error:
                logger.warning("a sign-out is known to this process alone: %s", error)

    @property
    def _provider(self) -> People:
        if self._people is None:
            raise errors.NotFound("there is no identity provider here")
        return self._people

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
