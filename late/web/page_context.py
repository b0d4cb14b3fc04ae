"""The values that all routes share, and the frame of every page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from late.control import Control
from late.control.dead_letters.commands import RATE_MAX, RATE_MIN
from late.control.replica import ReplicaReads
from late.model.access.rights import Caller, Role
from late.web import navigation
from late.web import static_files as files
from late.web.access import csrf
from late.web.access.csrf import Gate
from late.web.access.rules import narrowed
from late.web.formats import age, short
from late.web.render import Renderer
from late.web.replays import Replays
from late.web.snapshot import Snapshot, SnapshotReader
from late.web.usage.cost_report import Reports
from late.web.usage.last_hour import LastHour
from late.web.usage.past_week import PastWeek
from late.web.usage.today import Today

ROOT = "/ui/"
DONE: Mapping[str, str] = {
    "turned": "Changed. Workers follow within five seconds.",
    "same": "Nothing to change: these are the values that it has.",
    "undone": "Undone. Workers follow within five seconds.",
    "redriven": "{letters} retried. What was retried starts within seconds.",
    "paced": "{letters} retried. They fall due at {rate} a second, the last in {last}.",
    "purged": "{letters} deleted for good.",
    "redrive_all": "{letters} retried. What was retried starts within seconds.",
    "cancel_all": "{tasks} cancelled: no attempt of what has not ended will start any more.",
    "reschedule_all": "{tasks} get another time, as soon as their owners read of it.",
    "none": "Nothing was moved: none of them is a dead letter any more.",
    "paused": "Paused. What runs may finish.",
    "resumed": "It goes on.",
    "ran": "Enqueued.",
    "reset": "The group begins anew.",
    "replayed": "The replay has begun. Below is how far it is.",
    "replay_stopped": "The replay is cancelled. What was put back already runs within seconds.",
    "cancelled": "Its owner reads this within seconds. Then no attempt of it starts any more; one"
    " that runs goes on.",
    "workflow_cancelled": "Workers read this within seconds. Then no attempt of any of its tasks"
    " starts any more; one that runs goes on.",
    "edited": "Retried with the new payload.",
}
"""Messages after an action, by a word. The link to the screen contains the word and its figures,
but never the text: otherwise anybody could make a link that shows a message of their own."""


class Visitor(msgspec.Struct, frozen=True):
    """The visitor of a page, with the visitor's rights there."""

    caller: Caller
    seed: str
    token: str
    """The token of this visitor's forms."""
    changes: bool = False
    """The page takes changes of those who may make them."""
    has_session: bool = False

    def may_change(self, role: Role = "operate", queue: str | None = None) -> bool:
        """Tell whether to offer a change: of this queue, or of any when None."""
        return self.changes and self.caller.may(role, queue)

    @property
    def sees_all(self) -> bool:
        """Tell whether every queue is the visitor's to see."""
        return self.caller.may_all("view")

    @property
    def may_administer(self) -> bool:
        """Tell whether to offer changes of what is not of one queue."""
        return self.changes and self.caller.may_all("admin")


class PageContext:
    """The values that all routes of one page share.

    Args:
        gate: admits callers.
        key: `form_key` of `late_secret`, from which form tokens are made.
        changes: callers that may `operate` may change things; otherwise nobody may.
        secure: the page is served over TLS, and its cookies are sent over TLS only.
        reports: the cost reports that the screen of usage links to, if any.
        trace_url: the address of a trace, with `{trace}` in place of its id.
        reads: of a replica, for the looks that all visitors share. The caller closes it.
    """

    def __init__(
        self,
        control: Control,
        gate: Gate,
        *,
        key: bytes,
        changes: bool,
        secure: bool,
        reports: Reports | None = None,
        reads: ReplicaReads | None = None,
        trace_url: str | None = None,
    ) -> None:
        self.control = control
        self.gate = gate
        self.key = key
        self.changes = changes
        self.secure = secure
        self.reports = reports
        self.trace_url = trace_url
        self.snapshots = SnapshotReader(control, reads=reads)
        self.today = Today(control)
        self.last_hour = LastHour(control)
        self.past_week = PastWeek(control)
        self.replays = Replays(control)
        self.stopping = asyncio.Event()
        self.files, names = files.load()
        self._renderer = Renderer(names, ROOT)

    async def seen(self, visitor: Visitor) -> Snapshot:
        """The last look, as far as it is of the visitor's queues; see `SnapshotReader.seen`."""
        return narrowed(await self.snapshots.seen(), visitor.caller)

    @property
    def hidden(self) -> tuple[str, ...]:
        """The screens that have no entry for anybody now."""
        return () if self.snapshots.from_celery else ("celery",)

    def visitor(self, caller: Caller, seed: str, *, has_session: bool = False) -> Visitor:
        """Make the visitor: the caller with its rights on the page."""
        return Visitor(
            caller=caller,
            seed=seed,
            token=csrf.form_token(self.key, seed, caller.name),
            changes=self.changes,
            has_session=has_session,
        )

    def page(
        self,
        request: Request,
        visitor: Visitor,
        template: str,
        title: str,
        *,
        status: int = 200,
        problem: str = "",
        live: bool = False,
        **model: Any,
    ) -> Response:
        """Render one page in its frame.

        Args:
            live: the browser fetches the page again at every new look.
            problem: an error message, shown at the top.
        """
        here = navigation.here(
            request.url.path.removeprefix(ROOT), request.query_params.get("state", "")
        )
        sections = navigation.sections(visitor.caller, here, self.hidden)
        again = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        frame = {
            "title": short(title, 160),
            "sections": sections,
            "below": next((each for each in sections if each.is_current), None),
            "here": here,
            "caller": visitor.caller.actor if visitor.caller.outside else visitor.caller.name,
            "read_only": not visitor.may_change(),
            "may_change": visitor.may_change(),
            "may_purge": visitor.may_change("admin"),
            "may_read": False,
            "has_session": visitor.has_session,
            "token": visitor.token,
            "live": live and request.method == "GET",
            "live_from": again,
            # The trouble of the snapshot. Data that a screen has read itself is of now.
            "trouble": self.snapshots.trouble if live and "seen_us" in model else "",
            "look_age_s": self.snapshots.age_s,
            "freshness": self.snapshots.freshness if live and "seen_us" in model else "",
            "seen_us": None,
            "done": told(request.query_params),
            "problem": problem,
            "form": "",
        }
        return HTMLResponse(self._renderer.page(template, **{**frame, **model}), status)


def back(path: str, done: str, *, count: int | None = None, rate: float | None = None) -> Response:
    """Redirect to a screen after an action, so that a reload repeats nothing.

    Args:
        count: tasks or dead letters, if the message is about how many.
        rate: dead letters that fall due per second.
    """
    assert done in DONE
    figures = {"count": count, "rate": rate}
    more = "".join(f"&{name}={value}" for name, value in figures.items() if value is not None)
    return RedirectResponse(f"{ROOT}{path}?done={done}{more}", 303)


def told(asked: Mapping[str, str]) -> str:
    """The message after an action, from a link that `back` made; empty for any other link."""
    text = DONE.get(asked.get("done", ""), "")
    if "{" not in text:
        return text
    count, rate = asked.get("count", ""), _rate(asked.get("rate", "1"))
    if not (count.isascii() and count.isdigit() and len(count) < 13) or rate is None:
        return ""
    letters = "1 dead letter" if int(count) == 1 else f"{int(count):,} dead letters"
    # The first one is due at once.
    last = age(max(0, int(count) - 1) / rate)
    tasks = "1 task" if int(count) == 1 else f"{int(count):,} tasks"
    return text.format(letters=letters, tasks=tasks, rate=f"{rate:g}", last=last)


def _rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if RATE_MIN <= rate <= RATE_MAX else None
