"""Admit callers by their tokens, as the database has them now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from late.api.errors import Forbidden, TooMany, Unauthenticated
from late.api.limits import Pace
from late.api.sign_ins import FailedSignIns
from late.concurrency import in_thread
from late.model import tokens
from late.model.tokens import ANYBODY, CERTIFICATE, Caller, Scope, Token
from late.worker.background import BackgroundJob

READ_EVERY_S = 2.0
"""A new or a revoked token is known after about this time."""


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
    ) -> None:
        self._read = read
        self._now_us = now_us
        self._pace = pace or Pace()
        self.failures = failures or FailedSignIns()
        self._tokens: dict[str, Token] = {}

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

    def job(self) -> BackgroundJob:
        """Make the job that reads the tokens again and again."""
        return BackgroundJob(name="tokens", run=self.load, period_s=READ_EVERY_S)

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
        """
        caller = ANYBODY if self.open else self._known(authorization, certificate)
        if caller is None:
            if authorization or certificate:
                token = tokens.name_of((authorization or "").partition(" ")[2].strip()) or ""
                self.failures.add(interface, address, token if token in self._tokens else "")
            raise Unauthenticated("a bearer token is needed: Authorization: Bearer late...")
        wait_s = self._pace.wait_s(caller.name)
        if wait_s:
            raise TooMany("too many requests", wait_s)
        return caller

    def _known(self, authorization: str | None, certificate: Sequence[str]) -> Caller | None:
        scheme, _, text = (authorization or "").partition(" ")
        name = tokens.name_of(text.strip()) if scheme.lower() == "bearer" else None
        if name is not None:
            return tokens.admits(self._tokens.get(name), text.strip(), self._now_us())
        for subject in certificate:
            token = self._tokens.get(subject)
            if token is not None and token.digest == CERTIFICATE and token.live(self._now_us()):
                return tokens.caller(token)
        return None


def demand(caller: Caller, scope: Scope, queue: str | None = None) -> None:
    """Raise `Forbidden` unless `caller` has the scope, and may see the queue if one is given."""
    if not caller.may(scope):
        raise Forbidden(f"this token lacks the scope {scope!r}")
    if queue is not None and not caller.sees(queue):
        raise Forbidden(f"this token is not for the queue {queue[:128]!r}")
