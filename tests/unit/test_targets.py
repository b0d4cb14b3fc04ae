"""Targets as configured: what is accepted, where secrets come from, and what is never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import late
from late.errors import ConfigError
from late.model import targets
from late.model.targets import GrpcTarget, HttpTarget, Tls


@pytest.mark.parametrize(
    "make",
    [
        lambda: GrpcTarget("local", ("a:1",)),
        lambda: GrpcTarget("pull", ("a:1",)),
        lambda: GrpcTarget("no spaces", ("a:1",)),
        lambda: GrpcTarget("billing", ()),
        lambda: GrpcTarget("billing", "a:1"),  # type: ignore[arg-type]
        lambda: GrpcTarget("billing", ("a",)),
        lambda: GrpcTarget("billing", ("a:port",)),
        lambda: GrpcTarget("billing", ("a:99999",)),
        lambda: GrpcTarget("billing", ("unix:/run/x:1",)),
        lambda: GrpcTarget("billing", ("a:1",), concurrency=0),
        lambda: GrpcTarget("billing", ("a:1",), concurrency=True),
        lambda: GrpcTarget("billing", ("a:1",), probe_s=6),
        lambda: GrpcTarget("billing", ("a:1",), connect_s=float("nan")),
        lambda: GrpcTarget("billing", ("a:1",), metadata={"Bad Name": "x"}),
        lambda: Tls(cert="a.pem"),
        lambda: HttpTarget("mail", "ftp://example.org"),
        lambda: HttpTarget("mail", "example.org/x"),
        lambda: HttpTarget("mail", "https://"),
        lambda: HttpTarget("mail", "https://user:secret@example.org/"),
        lambda: HttpTarget("mail", "https://example.org:99999/"),
        lambda: HttpTarget("mail", "http://example.org/"),
        lambda: HttpTarget("mail", "http://10.0.0.1/"),
        lambda: HttpTarget("mail", "http://localhost.example.org/"),
        lambda: HttpTarget("mail", "https://example.org/", headers={"a\nb": "x"}),
        lambda: HttpTarget("mail", "https://a/", format="event"),  # type: ignore[arg-type]
        lambda: HttpTarget("mail", "https://a/", source="https://shop.example"),
        lambda: HttpTarget("mail", "https://a/", format="cloudevents", source="two words"),
        lambda: HttpTarget("mail", "https://a/", format="cloudevents", source=""),
        lambda: late.App("sqlite:///a.db", targets=[GrpcTarget("a", ("a:1",))] * 2),
        lambda: late.App("sqlite:///a.db", targets=["billing"]),  # type: ignore[list-item]
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("endpoints", "tls", "protection"),
    [
        (("billing.internal:7000",), None, "tls"),
        (("127.0.0.1:7000",), None, "plain"),
        (("[::1]:7000", "localhost:7000"), None, "plain"),
        (("localhost.example.org:7000",), None, "tls"),
        (("billing.internal:7000",), False, "plain"),
        (("127.0.0.1:7000",), True, "tls"),
        (("127.0.0.1:7000",), Tls(cert="c", key="k"), "mtls"),
        (("127.0.0.1:7000", "billing.internal:7000"), None, "plain/tls"),
    ],
)
def test_plain_text_stays_on_this_machine_unless_it_is_asked_for(
    endpoints: tuple[str, ...], tls: Any, protection: str
) -> None:
    assert GrpcTarget("billing", endpoints, tls=tls).protection == protection


def test_http_to_another_machine_is_asked_for_too() -> None:
    assert HttpTarget("mail", "http://10.0.0.1/", insecure=True).protection == "plain"
    assert HttpTarget("mail", "http://127.0.0.1:80/", secret="x").protection == "plain, signed"
    assert HttpTarget("mail", "https://example.org/").protection == "tls"


def test_a_secret_is_never_shown() -> None:
    made = [
        GrpcTarget("a", ("a:1",), token="hunter2", metadata={"x-key": "hunter2"}),
        HttpTarget("b", "https://b/", secret="hunter2", headers={"authorization": "hunter2"}),
        HttpTarget("c", "https://c/", proxy="http://me:hunter2@proxy"),
    ]
    assert "hunter2" not in repr(made)
    assert "hunter2" not in "".join(target.where for target in made)


def test_a_secret_comes_from_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("from a file\n")
    monkeypatch.setenv("BILLING_TOKEN", "from a variable")
    assert targets.resolve("env:BILLING_TOKEN", "token") == "from a variable"
    assert targets.resolve(f"file:{tmp_path / 'token'}", "token") == "from a file"
    assert targets.resolve("as it is", "token") == "as it is"
    with pytest.raises(ConfigError, match="token: it is empty"):
        targets.resolve("", "token")
    with pytest.raises(ConfigError, match="serve_handlers: token: it is empty"):
        late.serve_handlers(late.App("sqlite:///x.db"), "127.0.0.1:0", token="")
    for missing in ("env:NO_SUCH_VARIABLE", f"file:{tmp_path / 'nothing'}"):
        with pytest.raises(ConfigError, match="token: "):
            targets.resolve(missing, "token")


FILE = """
[billing]
kind = "grpc"
endpoints = ["billing-1:7000", "billing-2:7000"]
token = "env:BILLING_TOKEN"
tls = { ca = "/etc/ca.pem" }
concurrency = 8

[mail]
kind = "http"
url = "https://mail.internal/tasks"
secret = ["env:MAIL_NEW", "env:MAIL_OLD"]
"""


def test_a_file_adds_targets_and_changes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(FILE)
    mine = [
        GrpcTarget("billing", ("127.0.0.1:7000",)),
        HttpTarget("sms", "https://sms.internal/"),
    ]
    assert targets.configured(mine).keys() == {"billing", "sms"}
    monkeypatch.setenv("LATE_TARGETS", str(path))
    found = targets.configured(mine)
    assert found == {
        "billing": GrpcTarget(
            "billing",
            ("billing-1:7000", "billing-2:7000"),
            token="env:BILLING_TOKEN",
            tls=Tls(ca="/etc/ca.pem"),
            concurrency=8,
        ),
        "sms": mine[1],
        "mail": HttpTarget(
            "mail", "https://mail.internal/tasks", secret=("env:MAIL_NEW", "env:MAIL_OLD")
        ),
    }


@pytest.mark.parametrize(
    "text",
    [
        "billing = 1",
        "[billing]\nurl = 'https://x/'",
        "[billing]\nkind = 'carrier pigeon'",
        "[billing]\nkind = 'http'",
        "[billing]\nkind = 'http'\nurl = 'https://x/'\nendpoint = 'x'",
        "[billing]\nkind = 'http'\nurl = 'https://x/'\nname = 'other'",
        "[billing]\nkind = 'http'\nurl = 'https://x/'\nconcurrency = 'many'",
        "[billing]\nkind = 'http'\nurl = 'http://x/'",
        "[billing",
    ],
)
def test_a_wrong_file_is_refused_and_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        targets.load(path)
    assert "targets.toml" in str(refused.value) or "'billing'" in str(refused.value)


def test_a_remote_task_is_enqueued_like_any_other() -> None:
    app = late.App("sqlite:///shop.db")

    def charge(trip_id: int, amount: float = 1.0) -> None: ...

    plain = app.remote("charge", target="billing", queue="payments")
    typed = app.remote("charge2", target="billing", like=charge, retry=late.Retry(3))
    assert (plain.policy.target, plain.policy.queue) == ("billing", "payments")
    assert plain.call(trip_id=7, tags=["a"]).payload == b'{"trip_id":7,"tags":["a"]}'
    assert typed.call(7).payload == b'{"trip_id":7}'
    for wrong in (lambda: typed.call("seven"), lambda: typed.call(), lambda: typed.call(7, x=1)):
        with pytest.raises(late.InvalidPayload):
            wrong()
    for wrong in (lambda: plain.call(1), lambda: plain.call(x=float("nan"))):
        with pytest.raises(late.InvalidPayload):
            wrong()
    with pytest.raises(ConfigError, match="'billing'"):
        typed(7)
    with pytest.raises(ConfigError, match="twice"):
        app.remote("charge", target="billing")
    with pytest.raises(ConfigError, match="target"):
        app.remote("other", target="no such name")
