"""The page's screens and forms, by every role, with values that nothing can have.

Without a token of the scope that it takes, nothing is shown and nothing is changed.
"""

from __future__ import annotations

import re
import urllib.parse

from tests.attack.table import Row
from tests.attack.target import Target
from tests.security.test_page_values import FORMS, NUMBERS, SCREENS, TEXTS
from tests.unit.api_kit import Client

ROLES = ("", "enqueue", "consume", "view", "operate", "narrow", "all")
LOOK, CHANGE = {"view", "operate", "all"}, {"operate", "all"}
PLAIN = ("", "queues", "targets", "groups", "shards", "tasks", "tasks?state=parked", "dead",
         "workflows", "schedules", "workers", "autoscaler", "cost", "celery", "login",
         "static/late.css", "search?q=a", "nowhere",
         "shards/default/99999999999999999999")  # fmt: skip
OPEN = {"login", "static/late.css"}
OF_QUEUES = {
    "", "queues", "tasks", "tasks?state=parked", "workflows", "dead", "schedules", "cost",
    "search?q=a",
}  # fmt: skip
"""What a token for one queue sees, of its queue alone."""
HIDDEN = "of-another-queue"
"""The name of a task that the token `narrow` must not read anywhere."""
VALUES = ("9" * 20, "9" * 5_000, "-1", "nan", "a\0b", "\uffff")


def run(target: Target) -> list[Row]:
    return [_screens(target), _forms(target)]


def _screens(target: Target) -> Row:
    row = target.row("screens of the page, each role, plain and with odd values")
    with target.watched(row):
        hidden = {"name": HIDDEN, "delay_s": 3_600}
        producer = Client(target.http, target.tokens["all"])
        put = producer.now("POST", "/v1/queues/odd/tasks", hidden).json
        seen_by = set()
        for role in ROLES:
            call = Client(target.http, target.tokens.get(role))
            for path in (*PLAIN, f"tasks/{put['task_id']}"):
                answer = call.now("GET", f"/ui/{path}")
                status = answer.status
                shown = 200 <= status < 300
                may = role in LOOK or path in OPEN or (role == "narrow" and path in OF_QUEUES)
                tells = HIDDEN.encode() in answer.body
                seen_by |= {role} if tells else set()
                wrong = status >= 500 or (shown and not may) or (tells and role not in LOOK)
                row.add(
                    str(status), wrong=f"{role or 'nobody'} at {path}: {status}" if wrong else None
                )
        if seen_by != LOOK:
            row.wrong.append(f"a task of one queue was seen by {sorted(seen_by)}")
        call = Client(target.http, target.tokens["view"])
        for screen in SCREENS:
            for value in NUMBERS + TEXTS:
                if len(value) > 4_500:  # it is a head that is too large
                    value = value[:4_500]
                status = call.now("GET", "/ui/" + screen.replace("{}", value)).status
                row.add(
                    str(status), wrong=f"{screen} {value[:40]}: {status}" if status >= 500 else None
                )
    return row


def _forms(target: Target) -> Row:
    """Each form by each role: with its session's token, with none, and of another site."""
    row = target.row(
        "forms of the page, each role, with odd values, without token, of another site"
    )
    with target.watched(row):
        for role in ROLES:
            call = Client(target.http, target.tokens.get(role))
            cookie, token = _session(call)
            for path in FORMS:
                where = "/ui/" + path.replace("{}", "9" * 20)
                for given in (token, "", "0" * 64):
                    may = role in CHANGE and given == token
                    _post(row, call, where, {"do": "apply"}, role, given, cookie, may=may)
            if role not in CHANGE:
                continue
            for path, fields in FORMS.items():
                where = "/ui/" + path.replace("{}", "9" * 20)
                for field in fields or ("do",):
                    for value in VALUES:
                        _post(
                            row,
                            call,
                            where,
                            {"do": "preview", field: value},
                            role,
                            token,
                            cookie,
                            may=True,
                        )
                foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
                _post(
                    row, call, where, {"do": "apply"}, role, token, cookie, may=False, more=foreign
                )
    return row


def _post(
    row: Row, call: Client, path: str, fields: dict[str, str], role: str, token: str, cookie: str,
    *, may: bool, more: dict[str, str] | None = None,
) -> None:  # fmt: skip
    body = urllib.parse.urlencode({**fields, "token": token}).encode()
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Cookie": cookie,
        **(more or {}),
    }
    status = call.now("POST", path, raw=body, headers=headers).status
    wrong = status >= 500 or (not may and status < 400)
    row.add(str(status), wrong=f"{role or 'nobody'}: {path} {fields}: {status}" if wrong else None)


def _session(call: Client) -> tuple[str, str]:
    """The cookie of a session, and the token of its forms; another for who sees none."""
    answer = call.now("GET", "/ui/queues/odd")
    seed = answer.headers.get("set-cookie", "").partition(";")[0]
    found = re.search(rb'name="token" value="([^"]*)"', answer.body)
    return seed, found[1].decode() if found else "x"
