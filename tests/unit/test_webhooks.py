"""The signature of pushed requests, by the specification's own example."""

from __future__ import annotations

import pytest

import late
from late.dispatcher.push import responses as answers
from late.dispatcher.push import webhook_signature as webhooks
from late.errors import ConfigError

# Published with the Standard Webhooks specification and its libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "A" * 32
ID, AT = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"Webhook-Id": ID, "webhook-timestamp": str(AT), "WEBHOOK-SIGNATURE": SIGNATURE}


def test_the_published_example_gives_the_published_signature() -> None:
    assert webhooks.sign([webhooks.key(SECRET)], ID, AT, BODY) == SIGNATURE
    assert late.verify_webhook(HEADERS, BODY, SECRET, now_s=AT) == ID


def test_while_a_secret_changes_both_fit() -> None:
    both = webhooks.sign([webhooks.key(OTHER), webhooks.key(SECRET)], ID, AT, BODY)
    headers = HEADERS | {"WEBHOOK-SIGNATURE": both}
    for secrets in ((SECRET,), (OTHER,), (OTHER, SECRET)):
        assert late.verify_webhook(headers, BODY, *secrets, now_s=AT) == ID


@pytest.mark.parametrize(
    ("changed", "body", "now_s"),
    [
        ({}, BODY + b" ", AT),
        ({"Webhook-Id": ID + "x"}, BODY, AT),
        ({"webhook-timestamp": str(AT + 1)}, BODY, AT),
        ({"webhook-timestamp": "soon"}, BODY, AT),
        ({"webhook-timestamp": "9" * 5000}, BODY, AT),
        ({"Webhook-Id": ""}, BODY, AT),
        ({"WEBHOOK-SIGNATURE": ""}, BODY, AT),
        ({"WEBHOOK-SIGNATURE": SIGNATURE.removeprefix("v1,")}, BODY, AT),
        ({"WEBHOOK-SIGNATURE": SIGNATURE.replace("v1,", "v1a,")}, BODY, AT),
        ({"WEBHOOK-SIGNATURE": "v1,\u00e9"}, BODY, AT),
        ({}, BODY, AT + 301),
        ({}, BODY, AT - 301),
    ],
)
def test_what_was_changed_or_is_old_does_not_fit(
    changed: dict[str, str], body: bytes, now_s: float
) -> None:
    with pytest.raises(late.BadSignature):
        late.verify_webhook(HEADERS | changed, body, SECRET, now_s=now_s)


def test_another_secret_does_not_fit() -> None:
    with pytest.raises(late.BadSignature):
        late.verify_webhook(HEADERS, BODY, OTHER, now_s=AT)
    with pytest.raises(late.BadSignature):
        late.verify_webhook(HEADERS, BODY, now_s=AT)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_AAAA", "not base64!", "whsec_" + "A" * 400]
)
def test_a_secret_that_is_none_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        webhooks.key(secret)
    shown = secret.removeprefix("whsec_")
    assert not shown or shown not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("inf", None),
        ("soon", None),
        ("Thu, 25 Feb 2021 15:03:10 GMT", 60.0),
        ("Thu, 25 Feb 2021 15:01:10 GMT", 0.0),
        ("9" * 100, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, after_s: float | None) -> None:
    # 1614265330 is 2021-02-25 15:02:10 UTC.
    assert answers.retry_after_s(text, AT) == after_s
