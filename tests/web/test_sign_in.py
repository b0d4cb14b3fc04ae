"""A person signs in at a provider, which is another site, with a browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from late.api.identity.settings import IdentitySettings, OidcSettings
from late.control import Control
from tests.security.issuer import CLIENT, SECRET, issuer
from tests.web.chromium import Person
from tests.web.scene import Scene
from tests.web.serving import Served


def test_a_person_signs_in_at_a_provider(
    people: Callable[[], Person], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_OIDC_CLIENT_SECRET", SECRET)
    with issuer("localhost") as it, Control(scene.url) as control:
        oidc = OidcSettings(issuer=it.url, client_id=CLIENT)
        rules = ("group:sre=admin", "group:shop=view:payments")
        identity = IdentitySettings(oidc=oidc, rules=rules)
        with Served(scene.url, identity=identity) as served:
            tab = people().tab()
            tab.go(served.root + "groups/audit")
            assert tab.text("h1") == "Sign in"
            tab.follow(lambda: tab.press("main a"))
            assert tab.url() == served.root + "groups/audit"
            assert "oidc:alice@example.com" in tab.text(".who")
            assert "late_session" not in tab.evaluate("document.cookie")
            tab.follow(lambda: tab.press("button", "Pause"))
            assert control.audit.entries(limit=1)[0].actor == "oidc:alice@example.com"
            other = people().tab()
            it.person = {**it.person, "groups": ["shop"]}
            other.go(served.root + "queues")
            other.follow(lambda: other.press("main a"))
            assert "payments" in other.text("main")
            names = "[...document.querySelectorAll('tbody th')].map((each) => each.innerText)"
            assert set(other.evaluate(names)) == {"payments"}
            assert "Workers" not in other.text("nav")
            it.person = {**it.person, "groups": []}
            third = people().tab()
            third.go(served.root + "queues")
            third.follow(lambda: third.press("main a"))
            assert third.text("h1") == "No role"
            # What is open ends with the session, in another tab of the same browser too.
            tab.follow(lambda: tab.press("button", "Sign out"))
            tab.go(served.root + "groups/audit")
            assert tab.text("h1") == "Sign in"
            assert not [fault for fault in tab.faults if "status of 40" not in fault]
