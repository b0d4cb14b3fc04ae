"""The rules of `--role`, and settings of identity providers that do not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from late.api.identity.identities import make
from late.api.identity.roles import Claim, RoleMap, parse, read
from late.api.identity.settings import (
    IdentitySettings,
    JwtSettings,
    OidcSettings,
    ProxySettings,
)
from late.api.settings import ServeSettings
from late.errors import ConfigError
from late.model.access.rights import Caller, Right
from tests.unit.cli_kit import Cli

OIDC = OidcSettings(issuer="https://login.example", client_id="late")
JWT = JwtSettings(issuer="https://login.example", audience="queues")
PROXY = ProxySettings(addresses=("10.0.0.7",))
RULES = ("group:sre=admin",)


def test_a_rule_gives_rights_for_queues_and_lanes() -> None:
    assert parse("group:sre=view").rights == (Right("view"),)
    assert parse("group:sre=admin").rights == (Right("view"), Right("operate"), Right("admin"))
    shop = parse(" group:a:b=c=operate:orders, re.* ")
    assert shop.claim == Claim("group", "a:b=c")
    assert {right.queues for right in shop.rights} == {("orders", "re.*")}
    for value in ("controlplane", "x=controlplane", "plane=a", "cn=a, lane=b"):
        assert parse(f"group:{value}=view:lane=bulk").claim == Claim("group", value)
        assert parse(f"group:{value}=admin").claim == Claim("group", value)
    assert parse("group:urn:lane=view").claim == Claim("group", "urn:lane")
    assert parse("service:x=enqueue+consume:a").rights == (
        Right("enqueue", ("a",)),
        Right("consume", ("a",)),
    )
    assert parse("group:x=view:lane=bulk").rights == (Right("view", (), ("bulk",)),)
    assert parse("group:x=view:orders,lane=bulk,lane=low").rights == (
        Right("view", ("orders",), ("bulk", "low")),
    )


@pytest.mark.parametrize(
    "text",
    ["", "group", "group:sre", "group:=admin", "group:sre=", "sre=admin", "team:sre=admin",
     "group:sre=root", "group:sre=enqueue", "user:a=consume", "group:sre=admin:",
     "group:a=view:a b", "group:a=view:[a-z]", "group:a=view:lane=",
     "group:a=view:a,,b", "service:a=enqueue,consume",
     "group:sre=view+root", "group:a=view:lane=a b"],
)  # fmt: skip
def test_a_rule_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def test_rights_of_all_rules_add_up_and_do_not_mix() -> None:
    roles = RoleMap(["group:all=view:a", "group:shop=operate:b", "group:shop=view:c"])
    said = [Claim("group", "shop"), Claim("group", "all"), Claim("group", "none")]
    assert len(roles.known(said)) == 2
    caller = Caller("x", roles.rights(said))
    assert [caller.may("operate", each) for each in "abc"] == [False, True, False]
    assert [caller.may("view", each) for each in "abcd"] == [True, True, True, False]
    assert not caller.may("admin")
    assert roles.rights([Claim("user", "shop")]) == ()
    assert roles.rights([Claim("service", "all")]) == ()


def test_rules_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "roles"
    file.write_text("# people\n\n  group:sre=admin  \nuser:a=view\n")
    assert read(str(file)) == ["group:sre=admin", "user:a=view"]
    file.write_bytes(b"\xff")
    for path in (str(file), str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(ConfigError):
            read(path)
    file.write_text("#" * 300_000)
    with pytest.raises(ConfigError, match="above"):
        read(str(file))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (IdentitySettings(rules=RULES), "--role takes"),
        (IdentitySettings(oidc=OIDC), "nobody would have a right"),
        (IdentitySettings(proxy=PROXY), "nobody would have a right"),
        (
            IdentitySettings(
                oidc=OIDC,
                jwt=JwtSettings(issuer="https://login.example", audience="late"),
                rules=RULES,
            ),
            "ID token",
        ),
        (
            IdentitySettings(
                oidc=OidcSettings(issuer="https://a.example", client_id="c", session_s=90_000.0),
                rules=RULES,
            ),
            "--session",
        ),
        (
            IdentitySettings(
                oidc=OidcSettings(
                    issuer="https://a.example", client_id="c", page_url="http://late.example"
                ),
                rules=RULES,
            ),
            "--page-url",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(settings: IdentitySettings, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make(settings, page=True)


def test_people_come_to_the_page_only() -> None:
    for settings in (IdentitySettings(oidc=OIDC, rules=RULES),
                     IdentitySettings(proxy=PROXY, rules=RULES)):  # fmt: skip
        with pytest.raises(ConfigError, match="page"):
            make(settings, page=False)
    made = make(IdentitySettings(oidc=OIDC, jwt=JWT, proxy=PROXY, rules=RULES), page=True)
    assert len(made.providers) == 1, "one issuer is asked once"
    assert make(IdentitySettings(jwt=JWT, rules=RULES), page=False).services is not None


def test_a_provider_asks_for_tokens_and_other_machines_still_take_tls() -> None:
    identity = IdentitySettings(jwt=JWT, rules=RULES)
    assert ServeSettings(identity=identity).guarded
    with pytest.raises(ConfigError, match="TLS"):
        ServeSettings(identity=identity, host="0.0.0.0").checked()


def test_the_command_line_refuses_half_of_a_setting(cli: Cli) -> None:
    for half in (
        ["--user-header", "X-User"],
        ["--groups-header", "X-Groups"],
        ["--oidc-issuer", "https://a.example"],
        ["--oidc-client-id", "late"],
        ["--jwt-issuer", "https://a.example"],
        ["--jwt-audience", "a"],
        ["--page-url", "https://a.example"],
        ["--role", "group:sre=admin"],
        ["--trusted-proxy", "0.0.0.0/0", "--role", "group:sre=admin"],
        ["--trusted-proxy", "10.0.0.7"],
    ):
        assert "--" in cli.refused("serve", "--pull", "payments", *half)
