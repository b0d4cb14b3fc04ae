"""Admit callers by their tokens, as the database has them now.

What takes long for a caller (a stream, a long poll, the page's live updates) is run by
`while_admitted`, or waits for `over`. So it ends with the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from late.api.access.sign_ins import FailedSignIns
from late.api.errors import Forbidden, TooMany, Unauthenticated
from late.api.identity.names import is_jwt
from late.api.limits import Pace
from late.concurrency import in_thread, run_until
from late.model.access import tokens
from late.model.access.rights import ANYBODY, Caller, Scope
from late.model.access.tokens import CERTIFICATE, Token
from late.worker.background import BackgroundJob

if TYPE_CHECKING:
    from late.api.identity.services import Services

READ_EVERY_S = 2.0
"""A new or a revoked token is known after about this time."""
END_EVERY_S = 1.0
"""The end of a token's lifetime is seen after about this time, with or without the database."""

ENDED_KEPT_US = 25 * 3_600_000_000
"""No session lasts longer, so none is forgotten here while its cookie is still good."""

T = TypeVar("T")


async def _nothing(name: str) -> None:
    """Do nothing for a token that is over."""


class Access:
    """Admits callers.

    Args:
        read: returns all tokens; blocks, and is called in a thread. None admits everybody.
        now_us: a lower bound of the database's clock. An expired token may therefore still count
            for as long as the bound is behind; beside a worker, these are milliseconds.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[Token]] | None,
        *,
        now_us: Callable[[], int],
        pace: Pace | None = None,
        failures: FailedSignIns | None = None,
        services: Services | None = None,
    ) -> None:
        self._read = read
        self._now_us = now_us
        self._pace = pace or Pace()
        self.failures = failures or FailedSignIns()
        self._services = services
        self._read_ended: Callable[[], Sequence[str]] | None = None
        self._ended: dict[str, int] = {}
        """Sessions that were signed out of, with the end of what they were good for."""
        self._tokens: dict[str, Token] = {}
        self._live: frozenset[tuple[str, str]] = frozenset()
        """Names and hashes of the tokens that were valid at the last look."""
        self._waiting: dict[asyncio.Event, Caller] = {}
        self.on_end: Callable[[str], Awaitable[None]] = _nothing
        """Called with the name of each token that was valid and is not any more."""

    @property
    def open(self) -> bool:
        """Everybody is admitted."""
        return self._read is None

    async def load(self) -> None:
        """Read the tokens now.

        Raises:
            StoreError: they could not be read; those that were known still count.
        """
        if self._read is not None:
            self._tokens = {token.name: token for token in await in_thread(self._read)}
            if self._read_ended is not None:
                for key in await in_thread(self._read_ended):
                    self._ended.setdefault(key, self._now_us() + ENDED_KEPT_US)
            await self.end()

    def follow_sessions(self, read: Callable[[], Sequence[str]]) -> None:
        """End the sessions that `read` returns too; it blocks, and is called in a thread."""
        self._read_ended = read

    async def end_session(self, session: str) -> None:
        """End a session, and what runs for it, in this process."""
        self._ended[session] = self._now_us() + ENDED_KEPT_US
        await self.end()

    async def end(self) -> None:
        """End what runs for tokens that are not valid any more."""
        for event, caller in self._waiting.items():
            if not self.holds(caller):
                event.set()
        now_us = self._now_us()
        self._ended = {key: until for key, until in self._ended.items() if now_us < until}
        valid = (token for token in self._tokens.values() if token.live(now_us))
        live = frozenset((token.name, token.digest) for token in valid)
        gone, self._live = self._live - live, live
        for name, _ in gone:
            await self.on_end(name)

    def jobs(self) -> list[BackgroundJob]:
        """Make the jobs that read the tokens and end what runs, again and again."""
        return [
            BackgroundJob(name="tokens", run=self.load, period_s=READ_EVERY_S),
            BackgroundJob(name="token ends", run=self.end, period_s=END_EVERY_S),
        ]

    async def over(self, caller: Caller) -> None:
        """Wait until the caller's token is not valid any more."""
        event = asyncio.Event()
        self._waiting[event] = caller
        try:
            if self.holds(caller):
                await event.wait()
        finally:
            del self._waiting[event]

    async def while_admitted(self, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`, and cancel it when the caller's token is not valid any more.

        Raises:
            Unauthenticated: it was cancelled.
        """

        async def boxed() -> tuple[T]:
            return (await work(),)

        done = await run_until(self.over(caller), boxed())
        if done is None:
            raise _over()
        return done[0]

    def holds(self, caller: Caller) -> bool:
        """Tell whether the token of a caller that was admitted is still valid, as it was."""
        if self.open:
            return True
        if caller.expires_at_us is not None:
            return self._now_us() < caller.expires_at_us and caller.session not in self._ended
        token = self._tokens.get(caller.name)
        return token is not None and token.live(self._now_us()) and tokens.caller(token) == caller

    def check(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the token of a caller that was admitted is over by now."""
        if not self.holds(caller):
            raise _over()

    async def prepare(self, authorization: str | None) -> None:
        """Have what `admit` needs to know a JWT, which may ask its issuer for a key."""
        text = _bearer(authorization)
        if self._services is not None and is_jwt(text):
            await self._services.prepare(text)

    def admit(
        self,
        authorization: str | None,
        certificate: Sequence[str] = (),
        *,
        interface: str = "http",
        address: str = "",
    ) -> Caller:
        """Return the caller of a request.

        Its token is in the `Authorization` header, or has a name of its verified certificate.

        Raises:
            Unauthenticated: no valid token was shown. The message does not give the reason.
            TooMany: the caller makes more requests than it may, or too many sign-ins from its
                address have failed.
            Forbidden, Unavailable: see `Services.admit`.
        """
        caller = ANYBODY if self.open else self._known(authorization, certificate)
        if caller is None:
            if authorization or certificate:
                token = tokens.name_of(_bearer(authorization)) or ""
                self.failures.add(interface, address, token if token in self._tokens else "")
            raise Unauthenticated(
                "a valid bearer token is needed: Authorization: Bearer late... (not one that was"
                " revoked or is over; one just made is known within a few seconds)"
            )
        return self.paced(caller)

    def token(self, name: str) -> Token | None:
        """Return the token of that name, also one that is not valid any more; None without one."""
        return self._tokens.get(name)

    def paced(self, caller: Caller) -> Caller:
        """Count a request of a caller; raises `TooMany`."""
        wait_s = self._pace.wait_s(caller.name)
        if wait_s:
            raise TooMany("too many requests", wait_s)
        return caller

    @property
    def now_us(self) -> int:
        """A lower bound of the database's clock."""
        return self._now_us()

    def _known(self, authorization: str | None, certificate: Sequence[str]) -> Caller | None:
        text = _bearer(authorization)
        name = tokens.name_of(text)
        if name is not None:
            return tokens.admits(self._tokens.get(name), text, self._now_us())
        if self._services is not None and is_jwt(text):
            return self._services.admit(text, self._now_us())
        for subject in certificate:
            token = self._tokens.get(subject)
            if token is not None and token.digest == CERTIFICATE and token.live(self._now_us()):
                return tokens.caller(token)
        return None


def _bearer(authorization: str | None) -> str:
    """The token of the header; empty if it has none."""
    scheme, _, text = (authorization or "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _over() -> Unauthenticated:
    return Unauthenticated("this token is not valid any more")


def demand(caller: Caller, scope: Scope, queue: str | None = None) -> None:
    """Raise `Forbidden` unless `caller` has the scope, and may see the queue if one is given."""
    if not caller.may(scope):
        raise Forbidden(f"this token lacks the scope {scope!r}")
    if queue is not None and not caller.may(scope, queue):
        raise Forbidden(f"this token is not for the queue {queue[:128]!r}")
