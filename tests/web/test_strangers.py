"""Texts and pages of others, and callers that may only look."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import msgspec

from late.control import Control
from late.model.task import AttemptError
from late.store import open_store
from tests.conformance.kit import dead, own, parked, read_all, task
from tests.integration.control_kit import insert
from tests.support import sqlite
from tests.web.chromium import LOOK_EVERY_S, Person, Tab
from tests.web.scene import Scene
from tests.web.serving import Served

HOSTILE = (
    "<script>alert('script')</script>",
    "\"><img src=x onerror=alert('attribute')>",
    "'-alert('quote')-'</pre></td><svg onload=alert('svg')>",
    "javascript:alert('link')//{{'oops' * 3}}${alert(1)}",
)


async def _poison(url: str) -> list[str]:
    """A queue, a task, headers, payload, worker, reason and error for each hostile text."""
    sent = [
        task(
            n, msgspec.json.encode({"x": text}), queue=text, name=text,
            headers=msgspec.json.encode({text: text}).decode(),
        )
        for n, text in enumerate(HOSTILE)
    ]  # fmt: skip
    insert(url, *sent)
    store = open_store(url)
    await store.open()
    try:
        for n, text in enumerate(HOSTILE):
            owner = await own(store, n, name=text, ttl_s=86_400)
            (record,), cursor = await read_all(store, [sent[n]])
            letter = dead(of=record, reason=text, errors=(AttemptError(1, 1, text, text * 3),))
            late = parked(1, of=record, held_key=text)
            kept = {"parked": (late,)} if n == 0 else {"dead": (letter,)}
            await owner.settle(cursor=cursor, open=(), **kept)
    finally:
        await store.close()
    return [str(each.task_id) for each in sent]


def test_no_script_of_others_runs(tab: Tab, tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "evil.db")
    ids = asyncio.run(_poison(url))
    paths = ["", "queues", "dead", "tasks?state=parked", "shards", "workers", "groups"]
    paths += ["shards/default/1"]
    paths += [f"tasks/{task_id}?payload=1" for task_id in ids]
    for text in HOSTILE:
        sent = quote(text, safe="")
        paths += [f"queues/{sent}", f"queues?text={sent}", f"dead?error={sent}&queue={sent}"]
        paths += [f"groups/{sent}", f"?done={sent}", f"tasks/{sent}", f"targets?name={sent}"]
    with Served(url) as served:
        for path in paths:
            tab.go(served.root + path)
            # A script that was taken for one, and held up by the policy, is a fault as well.
            told = [fault for fault in tab.faults if "status of 40" not in fault]
            assert (told, tab.dialogs) == ([], []), path
            assert "oopsoops" not in tab.text(), path
            assert (
                tab.count("main img, main svg:not(.axis svg, .past svg, svg.spark), main script")
                == 0
            ), path
            tab.faults.clear()
        tab.go(f"{served.root}tasks/{ids[1]}?payload=1")
        assert all(HOSTILE[1] in tab.text(place) for place in ("h1", ".timeline", "main"))
        tab.go(served.root + "dead")
        # All of them: two letters of one millisecond have no order.
        tab.evaluate("document.querySelectorAll('main summary').forEach(each => each.click())")
        tab.shows(HOSTILE[3] * 3)
        # Also where the page fetches a part of itself.
        tab.go(served.root)
        tab.evaluate("document.body.addEventListener('htmx:afterSettle', () => window.came = true);"
                     "document.body.dispatchEvent(new Event('late:look'))")  # fmt: skip
        tab.wait("window.came")
        assert (tab.faults, tab.dialogs) == ([], [])
        assert HOSTILE[1] in tab.text("#attention + ul")


def test_no_script_of_a_report_runs(tab: Tab, scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "june"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text('{"report": "cost"}')
    script = "document.title = `ran as ${self.origin}`"  # cookies raise in a sandbox
    (folder / "index.html").write_text(
        f"<title>Cost</title><h1>What it cost</h1><script>{script}</script>"
        f'<img src="data:," onerror="{script}">'
    )

    def told(expression: str) -> object:
        # Not `evaluate` nor `go`: they wait for a promise, and a sandbox keeps none.
        asked = {"expression": expression, "returnByValue": True}
        return tab.call("Runtime.evaluate", asked)["result"].get("value")

    with Served(scene.url, reports=str(tmp_path / "reports")) as served:
        url = f"{served.root}cost/report"
        tab.call("Page.navigate", {"url": url})
        end = time.monotonic() + 120
        while told("`${location.href} ${document.readyState}`") != f"{url} complete":
            assert time.monotonic() < end
            time.sleep(LOOK_EVERY_S)
        assert told("document.querySelector('h1').innerText") == "What it cost"
        assert (told("document.title"), told("self.origin")) == ("Cost", "null")


@contextmanager
def site_of_another(body: str) -> Iterator[str]:
    """A page on another port of this host, which shares our cookies."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = body.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_form_of_another_site_changes_nothing(
    tab: Tab, served: Served, control: Control, scene: Scene
) -> None:
    tab.go(served.root + "groups/default")
    token = tab.evaluate("document.querySelector('input[name=token]').value")
    for stolen in ("0" * 64, token):  # even with the right token: the browser says where it is from
        form = (
            f"<form method=post action='{served.root}groups/default/pause'>"
            f"<input name=token value='{stolen}'></form>"
        )
        with site_of_another(form) as other:
            tab.go(other)
            tab.follow(lambda: tab.evaluate("document.forms[0].submit()"))
            tab.shows("this form came from another site")
    script = f"""<script>
      fetch("{served.root}groups/default/pause", {{
        method: "POST", mode: "no-cors", credentials: "include",
        body: new URLSearchParams({{token: "{token}"}}),
      }}).then(() => window.sent = "sent", () => window.sent = "failed");
    </script><iframe src="{served.root}"></iframe>"""
    with site_of_another(script) as other:
        tab.go(other)
        tab.wait("window.sent")
        framed = [fault for fault in tab.faults if "frame" in fault.lower()]
        assert framed, tab.faults
    assert control.groups.get("default").state == "working"
    assert control.audit.entries(subject="group:default") == []
    # The same from our own page is heard: what was refused is where it came from.
    tab.go(served.root + "groups/default")
    tab.follow(lambda: tab.press("button", "Pause"))
    assert control.groups.get("default").state == "paused"


def test_who_may_look_finds_nothing_to_press_and_is_refused(
    people: Callable[[], Person], scene: Scene, control: Control
) -> None:
    secrets = {}
    for name, scope in (("eve", "view"), ("olga", "operate")):
        secrets[name], _ = control.tokens.create(name, scopes=[scope], queues=["*"])
    with Served(scene.url, auth=True) as served:
        tabs = {}
        for name, secret in secrets.items():
            tab = tabs[name] = people().tab()
            tab.go(served.root + "queues")
            assert (tab.text("h1"), "payments" in tab.text()) == ("Sign in", False)
            tab.type("input[name=secret]", "late.eve.wrong")
            tab.follow(lambda tab=tab: tab.press("button", "Sign in"))  # type: ignore[misc]
            tab.shows("This token is not valid.")
            tab.type("input[name=secret]", secret)
            tab.follow(lambda tab=tab: tab.press("button", "Sign in"))  # type: ignore[misc]
            assert name in tab.text(".who")
        eve, olga = tabs["eve"], tabs["olga"]
        assert "late_token" not in eve.evaluate("document.cookie")
        for path in ("queues/payments", "groups/audit", "schedules", "dead",
                     f"tasks/{scene.dead[0]}?payload=1"):  # fmt: skip
            eve.go(served.root + path)
            words = eve.evaluate(
                "[...document.querySelectorAll('main button:enabled')].map((b) => b.innerText)"
            )
            assert set(words) <= {"Filter"}, path
            assert "12.50" not in eve.text(), path
        refused = eve.evaluate(
            "fetch('/ui/groups/audit/pause', {method: 'POST', body: new URLSearchParams({token:"
            " document.querySelector('input[name=token]').value})}).then((each) => each.status)"
        )
        assert (refused, control.groups.get("audit").state) == (403, "idle")
        olga.go(f"{served.root}tasks/{scene.dead[0]}?payload=1")
        olga.shows("12.50")
        olga.go(served.root + "groups/audit")
        olga.follow(lambda: olga.press("button", "Pause"))
        assert control.audit.entries(limit=1)[0].actor == "token:olga"
        olga.follow(lambda: olga.press("button", "Sign out"))
        olga.go(served.root + "queues")
        assert olga.text("h1") == "Sign in"
    with Served(scene.url, changes=False) as served:
        tab = people().tab()
        tab.go(served.root + "groups/audit")
        assert "read-only" in tab.text(".who")
        assert tab.count("main button") == 0
