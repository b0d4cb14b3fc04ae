"""People who come to the page by a provider's sign-in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt
import pytest

from late.api.access.sign_ins import FailedSignIns
from late.api.identity.sessions import Seal, Session, SignIn
from late.api.identity.settings import OidcSettings
from late.errors import ConfigError
from late.web.access.csrf import own_path
from tests.security.issuer import CLIENT, OTHER, SECRET, Issuer, issuer
from tests.security.people_kit import World
from tests.support import sqlite
from tests.unit.web_kit import KEY, Page, fields_of


@pytest.fixture(name="it")
def _issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    monkeypatch.setenv("LATE_OIDC_CLIENT_SECRET", SECRET)
    with issuer() as made:
        yield made


@pytest.fixture(name="world")
def _world(it: Issuer, tmp_path: Path) -> World:
    url = sqlite.database(tmp_path / "q.db")
    return World(it, url)


async def begun(page: Page, path: str = "/ui/queues") -> str:
    """The provider's address that a sign-in leads to."""
    answer = await page.get(f"oidc/start?next={path}")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def back(page: Page, url: str) -> httpx.Response:
    """The browser comes back from the provider."""
    return await page.client.get(url)


async def signed_in(page: Page, it: Issuer) -> httpx.Response:
    return await back(page, it.authorize(await begun(page)))


async def test_a_person_signs_in_acts_and_signs_out(world: World, it: Issuer) -> None:
    async with world.page() as page, world.page() as other:
        first = await page.get("queues?text=a")
        assert first.headers["location"] == "/ui/login?next=%2Fui%2Fqueues%3Ftext%3Da"
        form = await page.get("login?next=/ui/queues")
        assert 'href="/ui/oidc/start?next=%2Fui%2Fqueues"' in form.text
        asked = parse_qs(urlsplit(await begun(page)).query)
        assert asked["redirect_uri"] == ["http://127.0.0.1/ui/oidc/callback"]
        done = await signed_in(page, it)
        assert (done.status_code, done.headers["location"]) == (303, "/ui/queues")
        cookies = {text.partition("=")[0]: text.lower() for text in
                   done.headers.get_list("set-cookie")}  # fmt: skip
        assert {"httponly", "samesite=lax", "path=/ui/"} <= {
            word.strip() for word in cookies["late_session"].split(";")
        }
        assert SECRET not in str(done.headers)
        assert "oidc:alice@example.com" in await page.shown("")
        changed = await page.post("groups/default/pause")
        assert changed.status_code == 303
        assert page.control.audit.entries(limit=1)[0].actor == "oidc:alice@example.com"
        kept = page.client.cookies["late_session"]
        other.client.cookies.set("late_session", kept)
        assert "oidc:alice@example.com" in await other.shown(""), "each process knows it"
        assert (await page.post("logout")).headers["location"] == "/ui/login"
        assert "late_session" not in page.client.cookies
        for each in (page, other):
            await each.access.load()  # type: ignore[attr-defined]
            each.client.cookies.set("late_session", kept, domain="127.0.0.1", path="/ui/")
            assert (await each.get("")).status_code == 303, "the cookie is good for nothing"
        entry = page.control.audit.entries(limit=1)[0]
        assert (entry.action, entry.actor) == ("session.end", "oidc:alice@example.com")
        assert kept.partition(".")[0] not in entry.subject


async def test_what_is_open_ends_with_the_session(world: World, it: Issuer) -> None:
    async with world.page() as page, world.page() as elsewhere:
        await signed_in(page, it)
        gate = page.site._context.gate
        cookie = page.client.cookies["late_session"]

        def caller(of: Page) -> Any:
            found = of.site._context.gate
            return found.admit(None, None, (), address="", session=cookie)

        here = asyncio.create_task(gate.over(caller(page)))
        there = asyncio.create_task(elsewhere.site._context.gate.over(caller(elsewhere)))
        await asyncio.sleep(0)
        await gate.sign_out(caller(page))
        await elsewhere.access.load()  # type: ignore[attr-defined]
        async with asyncio.timeout(120):
            await asyncio.gather(here, there)
        await signed_in(page, it)
        cookie = page.client.cookies["late_session"]
        late = asyncio.create_task(gate.over(caller(page)))
        await asyncio.sleep(0)
        world.ahead_us = 3_599_000_000
        await page.access.end()  # type: ignore[attr-defined]
        assert not late.done()
        world.ahead_us = 3_601_000_000
        await page.access.end()  # type: ignore[attr-defined]
        async with asyncio.timeout(120):
            await late
        assert (await page.get("")).status_code == 303


async def test_roles_come_from_groups_and_from_a_verified_name(world: World, it: Issuer) -> None:
    async with world.page() as page:
        it.person = {**it.person, "groups": ["shop", "other"]}
        await signed_in(page, it)
        assert (await page.get("queues/orders")).status_code == 200
        assert (await page.get("queues/secret")).status_code == 404
        assert (await page.get("workers")).status_code == 404
        assert (await page.post("groups/default/pause", token=await token(page))).status_code == 404
        it.person = {"sub": "u-2", "email": "bob@example.com", "email_verified": True}
        await signed_in(page, it)
        assert (await page.get("queues/orders")).status_code == 200
        # Whoever writes somebody's address into a profile is not that person.
        it.person = {"sub": "u-3", "email": "bob@example.com", "email_verified": False}
        refused = await signed_in(page, it)
        assert refused.status_code == 403
        assert "u-3" in refused.text
        it.person = {"sub": "u-1", "email": "bob@example.com"}
        await signed_in(page, it)
        assert (await page.get("queues/refunds")).status_code == 200
        assert (await page.get("queues/orders")).status_code == 404


async def token(page: Page) -> str:
    return fields_of((await page.get("queues")).text)["token"]


async def test_who_has_no_role_is_told_what_is_missing_and_not_what_there_is(
    world: World, it: Issuer
) -> None:
    it.person["groups"] = ["guests"]
    async with world.page() as page:
        answer = await signed_in(page, it)
        assert answer.status_code == 403
        assert "alice@example.com" in answer.text
        assert "groups" in answer.text
        assert "--role" in answer.text
        assert not any(word in answer.text for word in ("sre", "shop", "orders", "<nav"))
        assert "late_session" not in page.client.cookies


async def test_a_rule_that_is_gone_ends_the_rights_of_a_session(world: World, it: Issuer) -> None:
    async with world.page() as page, world.page(rules=("group:shop=view",)) as later:
        await signed_in(page, it)
        later.client.cookies.set("late_session", page.client.cookies["late_session"])
        answer = await later.get("")
        assert (answer.status_code, "no role here any more" in answer.text) == (403, True)


ID_TOKENS: dict[str, dict[str, Any]] = {
    "wrong audience": {"aud": "another-client"},
    "wrong issuer": {"iss": "https://evil.example"},
    "expired": {"exp": int(time.time()) - 1},
    "not yet valid": {"nbf": int(time.time()) + 3_600},
    "another nonce": {"nonce": "another"},
    "no nonce": {"nonce": None},
    "for another party": {"aud": [CLIENT, "evil"], "azp": "evil"},
    "no subject": {"sub": None},
}


@pytest.mark.parametrize("fault", ID_TOKENS)
async def test_a_wrong_id_token_signs_nobody_in(world: World, it: Issuer, fault: str) -> None:
    it.over = ID_TOKENS[fault]
    async with world.page() as page:
        answer = await signed_in(page, it)
        assert answer.status_code == 401
        assert "late_session" not in page.client.cookies
        it.over = {}
        assert (await signed_in(page, it)).status_code == 303


@pytest.mark.parametrize("how", ["none", "hs256", "other key"])
async def test_a_badly_signed_id_token_signs_nobody_in(
    world: World, it: Issuer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyJWT itself does not sign with a public key.
    monkeypatch.setattr(jwt.algorithms, "is_pem_format", lambda _: False)
    async with world.page() as page:
        url = await begun(page)
        nonce = parse_qs(urlsplit(url).query)["nonce"][0]
        claims = it.claims(aud=CLIENT, nonce=nonce, **it.person)
        it.id_token = {
            "none": lambda: jwt.encode(claims, None, "none", headers={"kid": "k1"}),
            "hs256": lambda: jwt.encode(claims, it.public, "HS256", headers={"kid": "k1"}),
            "other key": lambda: it.sign(claims, key=OTHER),
        }[how]()
        assert (await back(page, it.authorize(url))).status_code == 401


async def test_a_nonce_and_a_state_count_once_and_in_their_browser(
    world: World, it: Issuer
) -> None:
    async with world.page() as page, world.page() as victim:
        # The ID token of an earlier sign-in.
        url = await begun(page)
        nonce = parse_qs(urlsplit(url).query)["nonce"][0]
        old = it.sign(it.claims(aud=CLIENT, nonce=nonce, **it.person))
        first = it.authorize(url)
        cookie = page.client.cookies["late_signin"]
        assert (await back(page, first)).status_code == 303
        it.id_token = old
        assert (await signed_in(page, it)).status_code == 401
        it.id_token = None
        # The same answer again, with the cookie that it was for.
        page.client.cookies.set("late_signin", cookie, domain="127.0.0.1", path="/ui/oidc/")
        assert (await back(page, first)).status_code == 400
        # An attacker's answer in a victim's browser: without a state, or with the attacker's.
        mine = it.authorize(await begun(page))
        assert (await back(victim, mine)).status_code == 400
        await begun(victim)
        assert (await back(victim, mine)).status_code == 400
        for sent in ({"code": "x"}, {"code": "x", "state": ""}, {"state": "é", "code": "x"}, {}):
            await begun(victim)
            answer = await victim.get(f"oidc/callback?{urlencode(sent)}")
            assert answer.status_code == 400, sent
        assert "late_session" not in victim.client.cookies


async def test_answers_that_nobody_asked_for_close_the_sign_in_to_nobody(
    world: World, it: Issuer
) -> None:
    # Another web page can send a browser here, and strangers behind a proxy have its address.
    async with world.page() as stranger, world.page() as page:
        for _ in range(15):
            assert (await stranger.get("oidc/callback?state=x&code=y")).status_code == 400
        page.access.failures = stranger.access.failures  # type: ignore[attr-defined]
        assert (await signed_in(page, it)).status_code == 303


async def test_an_answer_of_another_issuer_or_an_error_is_refused(world: World, it: Issuer) -> None:
    async with world.page() as page:
        page.access.failures = FailedSignIns(clock=lambda: 0.0)  # type: ignore[attr-defined]
        good = it.authorize(await begun(page))
        other = good.replace(urlencode({"iss": it.url}), urlencode({"iss": "https://evil.example"}))
        assert (await back(page, other)).status_code == 400
        state = parse_qs(urlsplit(await begun(page)).query)["state"][0]
        sent = {"state": state, "error": "access_denied", "error_description": "<b>call me"}
        answer = await page.get(f"oidc/callback?{urlencode(sent)}")
        assert answer.status_code == 401
        assert "call me" not in answer.text
        # After ten from one address the provider is asked no more.
        asked = len(it.asked)
        found = []
        for _ in range(12):
            url = it.authorize(await begun(page))
            it.codes.clear()
            found.append((await back(page, url)).status_code)
        assert found[-1] == 429
        assert len(it.asked) - asked < 10


async def test_a_session_of_before_the_sign_in_does_not_stay(world: World, it: Issuer) -> None:
    async with world.page() as attacker, world.page() as page:
        await signed_in(attacker, it)
        planted = attacker.client.cookies["late_session"]
        page.client.cookies.set("late_session", planted, domain="127.0.0.1", path="/ui/")
        page.client.cookies.set("late_token", "late.x.y", domain="127.0.0.1", path="/ui/")
        page.client.cookies.set("late_seed", "A" * 43, domain="127.0.0.1", path="/ui/")
        await signed_in(page, it)
        assert page.client.cookies["late_session"] != planted
        assert page.client.cookies["late_seed"] != "A" * 43
        assert "late_token" not in page.client.cookies


def test_a_cookie_that_nobody_here_signed_is_none() -> None:
    seal, now = Seal(KEY), 1_000
    session = Session("i", "iss", "sub", "name", (), 2_000)
    text = seal.close(session)
    assert seal.open(text, Session, now) == session
    body, _, mark = text.partition(".")
    for wrong in (
        None, "", ".", body, f"{body}.", f".{mark}", f"{body[:-2]}AA.{mark}", f"{body}.é",
        f"{body}.{mark[:-1]}0", "x" * 10_000, Seal(b"other" * 8).close(session),
    ):  # fmt: skip
        if wrong != text:
            assert seal.open(wrong, Session, now) is None, wrong
    assert seal.open(text, Session, 2_000) is None, "its time is over"
    begun_here = seal.close(SignIn("s", "n", "v", "/ui/", 2_000))
    assert seal.open(begun_here, Session, now) is None, "a sign-in is no session"


@pytest.mark.parametrize(
    "path",
    ["https://evil.example", "//evil.example", "/\\evil.example", "/ui/\\evil", "/ui//evil.example",
     "javascript:alert(1)", "/uix", "/", "", "ui/", "/ui/../v1/queues", "/ui/\r\nSet-Cookie: a=b",
     "/ui/ x", "/ui/é", "/ui/" + "x" * 600, "http:/ui/", "/%2f/evil.example"],
)  # fmt: skip
async def test_a_sign_in_leads_to_own_pages_only(world: World, it: Issuer, path: str) -> None:
    assert own_path(path, "/ui/") == "/ui/"
    async with world.page() as page:
        answer = await page.client.get("/ui/oidc/start", params={"next": path})
        done = await back(page, it.authorize(answer.headers["location"]))
        assert done.headers["location"] == "/ui/"


async def test_the_address_to_come_back_to_is_not_the_request_s(world: World, it: Issuer) -> None:
    async with world.page(page_url="https://late.example.com") as page:
        answer = await page.get("oidc/start", headers={"Host": "evil.example"})
        asked = parse_qs(urlsplit(answer.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://late.example.com/ui/oidc/callback"]
        assert all("Secure" in text for text in answer.headers.get_list("set-cookie"))


async def test_while_the_provider_is_away_sessions_go_on_and_sign_ins_say_so(
    world: World, it: Issuer
) -> None:
    async with world.page() as page, world.page() as fresh:
        await signed_in(page, it)
        url = await begun(page)
        it.away = True
        assert (await page.get("")).status_code == 200
        answer = await fresh.get("oidc/start")
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
        it.codes.clear()
        found = await back(page, it.authorize(url))
        assert found.status_code in (401, 503)
        assert (await page.get("")).status_code == 200


async def test_a_session_is_no_bearer_token_and_an_id_token_none_either(
    world: World, it: Issuer
) -> None:
    async with world.page() as page:
        await signed_in(page, it)
        cookie = page.client.cookies["late_session"]
        page.client.cookies.clear()
        id_token = it.sign(it.claims(aud=CLIENT, **it.person))
        for text in (cookie, id_token):
            answer = await page.get("", headers={"Authorization": f"Bearer {text}"})
            assert answer.status_code == 303


def test_a_secret_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(" quiet\n")
    monkeypatch.setenv("LATE_OIDC_CLIENT_SECRET", "loud")
    made = OidcSettings(issuer="https://i.example", client_id="c")
    assert made.secret() == "loud"
    assert OidcSettings(issuer="", client_id="", secret_file=str(file)).secret() == "quiet"
    file.write_text("")
    for path in (str(file), str(tmp_path / "none")):
        with pytest.raises(ConfigError):
            OidcSettings(issuer="", client_id="", secret_file=path).secret()
