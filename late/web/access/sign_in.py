"""Sign in and out: by a token, or at an identity provider. And forms, which all of these take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from late.model.access.rights import NOBODY, Caller
from late.model.access.rules import Rule
from late.web.access import csrf
from late.web.access.csrf import SEED, SESSION, SIGN_IN, TOKEN, Foreign
from late.web.page_context import ROOT, PageContext, Visitor

AT = f"{ROOT}oidc/"
"""Only what is below gets the cookie of a sign-in that has begun."""
Screen = Callable[[Request, Visitor], Awaitable[Response]]


class Page(Protocol):
    """The part of the page that a sign-in needs."""

    async def admit(self, request: Request) -> Caller: ...
    def visitor(self, request: Request, caller: Caller) -> Visitor: ...
    def guarded(
        self, screen: Screen, rule: Rule | None
    ) -> Callable[[Request], Awaitable[Response]]: ...
    def failed(self, request: Request, visitor: Visitor, error: Exception) -> Response: ...
    def told(self, error: Exception) -> tuple[int, str]: ...
    def dressed(self, request: Request, visitor: Visitor, response: Response) -> Response: ...


class SignIns:
    """Routes of signing in and out."""

    def __init__(self, context: PageContext, page: Page) -> None:
        self._context = context
        self._page = page

    def routes(self) -> list[Route]:
        """The routes; those of a provider only where there is one."""
        found = [
            Route(f"{ROOT}login", self._page.guarded(self._form, None)),
            Route(f"{ROOT}login", self._login, methods=["POST"]),
            Route(f"{ROOT}logout", self._logout, methods=["POST"]),
        ]
        if self._context.gate.signs_in:
            found += [Route(f"{AT}start", self._start), Route(f"{AT}callback", self._callback)]
        return found

    async def _form(self, request: Request, visitor: Visitor) -> Response:
        return self._shown(request, visitor)

    def _shown(
        self, request: Request, visitor: Visitor, status: int = 200, problem: str = ""
    ) -> Response:
        path = csrf.own_path(request.query_params.get("next", ""), ROOT)
        start = f"{AT}start?next={quote(path, safe='')}" if self._context.gate.signs_in else ""
        return self._context.page(
            request, visitor, "login.html", "Sign in", status=status, problem=problem, start=start
        )

    async def _login(self, request: Request) -> Response:
        visitor = self._page.visitor(request, NOBODY)
        try:
            fields = await read_form(request, self._context.key, NOBODY)
            secret, address = fields.get("secret", ""), address_of(request)
            self._context.gate.check_address(address)
            host, given = request.headers.get("host"), f"Bearer {secret}"
            await self._context.gate.prepare(given)
            self._context.gate.admit(given, host, (), address=address)
            response: Response = RedirectResponse(ROOT, 303)
            if not self._context.gate.open:
                set_cookie(response, TOKEN, secret, secure=self._context.secure)
                response.delete_cookie(SESSION, path=ROOT)
        except Exception as error:
            status, text = self._page.told(error)
            text = "This token is not valid." if status == 401 else text
            response = self._shown(request, visitor, status, text)
        return self._page.dressed(request, visitor, response)

    async def _logout(self, request: Request) -> Response:
        visitor = self._page.visitor(request, NOBODY)
        try:
            caller = await self._page.admit(request)
            await read_form(request, self._context.key, caller)
            await self._context.gate.sign_out(caller)
            response: Response = RedirectResponse(f"{ROOT}login", 303)
            for name in (TOKEN, SESSION):
                response.delete_cookie(name, path=ROOT)
        except Exception as error:
            response = self._page.failed(request, visitor, error)
        return self._page.dressed(request, visitor, response)

    async def _start(self, request: Request) -> Response:
        """Send the browser to the provider."""
        visitor = self._page.visitor(request, NOBODY)
        try:
            path = csrf.own_path(request.query_params.get("next", ""), ROOT)
            where, cookie = await self._context.gate.begin(path)
            response: Response = RedirectResponse(where, 303)
            # The provider sends the browser back from another site.
            set_cookie(response, SIGN_IN, cookie, secure=self._context.secure, site="lax", path=AT)
        except Exception as error:
            response = self._shown(request, visitor, *self._page.told(error))
        return self._page.dressed(request, visitor, response)

    async def _callback(self, request: Request) -> Response:
        """Take the browser back from the provider."""
        visitor = self._page.visitor(request, NOBODY)
        try:
            made, path = await self._context.gate.finish(
                request.query_params, request.cookies.get(SIGN_IN), address=address_of(request)
            )
            # A new seed: no form that was made before this sign-in counts after it.
            visitor = self._context.visitor(NOBODY, csrf.new_seed())
            response: Response = RedirectResponse(csrf.own_path(path, ROOT), 303)
            # The way back is one from another site, on which a stricter cookie would not be sent.
            set_cookie(response, SESSION, made, secure=self._context.secure, site="lax")
            response.delete_cookie(TOKEN, path=ROOT)
        except Exception as error:
            status, text = self._page.told(error)
            if status == 403:
                response = self._context.page(
                    request, visitor, "problem.html", "No role", status=status, problem=text
                )
            else:
                response = self._shown(request, visitor, status, text)
        response.delete_cookie(SIGN_IN, path=AT)
        return self._page.dressed(request, visitor, response)


async def read_form(request: Request, key: bytes, caller: Caller) -> dict[str, str]:
    """Read a form of the page, and check that it is of this caller's session.

    Raises:
        Stale: it is not.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Foreign("this is no form of this page")
    body = b""
    try:
        async with asyncio.timeout(csrf.FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > csrf.FORM_BYTES:
                    raise Foreign("this form is larger than any of this page, so nothing was done")
    except TimeoutError:
        raise Foreign(f"this form had not come whole after {csrf.FORM_S:g} s") from None
    found = csrf.fields(body)
    seed = request.cookies.get(SEED)
    csrf.check_form(key, seed, caller.name, found.get("token"), request.headers)
    return found


def set_cookie(
    response: Response,
    name: str,
    value: str,
    *,
    secure: bool,
    site: Literal["strict", "lax"] = "strict",
    path: str = ROOT,
) -> None:
    """Set a cookie that no script can read."""
    response.set_cookie(name, value, path=path, secure=secure, httponly=True, samesite=site)


def address_of(request: Request) -> str:
    """The address of the caller, or of the proxy before it."""
    return "" if request.client is None else request.client.host
