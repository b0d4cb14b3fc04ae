"""Keep the list of workers that may own shards: all, those on a list, or those of a DNS name.

The list decides **placement** alone. Whether a worker lives is for its heartbeat to say, and who
may settle is for the journal:

| worker | owns |
|---|---|
| on the list, heartbeat alive | its share among these |
| on the list, no heartbeat | nothing: the others share what would be its, at once |
| heartbeat alive, not on the list | nothing; what it holds it hands over |

So a list that is out of date costs idle workers and never a task. Workers with different lists may
each leave a shard to the other until their lists agree, which for DNS takes its time to live.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterable

from late import events
from late.config import Members, member_name
from late.events import Emitter
from late.store.base import Membership
from late.tailer.membership import member_of, restricted

LOOK_UP_EVERY_S = 5.0
DEADLINE_S = 3.0
"""One look-up may take so long before it counts as failed."""

LookUp = Callable[[str], Iterable[str]]


def addresses(name: str) -> set[str]:
    """Return the addresses (A and AAAA) of `name`. Blocks.

    Raises:
        OSError: there are none, or no name server answers.
    """
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return {str(place[0]).partition("%")[0] for *_, place in found}


def own_name(members: Members, given: str | None) -> str:
    """Return this worker's name: the given one, or the one that such a list has for it."""
    if given:
        return member_name(given)
    if members.source == "dns":
        # Nothing is sent: connecting a datagram socket only chooses the address to send from.
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect(("192.0.2.1", 9))
            return str(out.getsockname()[0])
    return member_name(socket.gethostname())


class MemberList:
    """The names of those who may own shards, kept up to date by `run` where they can change.

    Args:
        look_up: addresses of a name, blocking; runs in a thread of its own.
    """

    def __init__(
        self,
        members: Members,
        me: str,
        *,
        look_up: LookUp = addresses,
        every_s: float = LOOK_UP_EVERY_S,
        deadline_s: float = DEADLINE_S,
        rng: random.Random | None = None,
        emitter: Emitter = events.default,
    ) -> None:
        self._source = members
        self._me = me
        self._look_up = look_up
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._rng = rng or random.Random()
        self._emitter = emitter
        self._asking: threading.Thread | None = None
        self.unlisted = ""
        """This worker's name, while the list does not have it."""
        self.names: frozenset[str] | None = None
        """None: all workers. Empty before the first answer of a DNS server."""
        if members.source == "static":
            self.names = frozenset(members.names)
        elif members.source == "dns":
            self.names = frozenset()

    def view(self, membership: Membership) -> Membership:
        """Return the fleet as placement is to see it.

        Tells once that this worker is not on the list; not before there is a list, or every worker
        would tell so at its start.
        """
        names = self.names
        if names is None:
            return membership
        if not names:
            return restricted(membership, names)
        mine = [member_of(w) for w in membership.workers if w.worker_id == self._me]
        unlisted = mine[0] if mine and mine[0] not in names else ""
        if unlisted and not self.unlisted:
            shown = ", ".join(sorted(names)[:20])
            self._emitter.emit(events.NOT_A_MEMBER, member=unlisted, members=shown)
        self.unlisted = unlisted
        return restricted(membership, names)

    async def run(self) -> None:
        """Look up again and again, until cancelled. Returns at once for a list that cannot change.

        A failure leaves the last good answer, and an empty answer is a failure: a name server
        that has forgotten everybody must not stop the fleet.
        """
        while self._source.source == "dns":
            [name] = self._source.names
            try:
                async with asyncio.timeout(self._deadline_s):
                    found = await self._ask(name)
            except (OSError, TimeoutError) as error:
                known = len(self.names or ())
                text = str(error) or f"no answer within {self._deadline_s:g} s"
                self._emitter.emit(events.MEMBERS_UNKNOWN, members=known, name=name, error=text)
            else:
                self.names = found
            await asyncio.sleep(self._every_s * self._rng.uniform(0.8, 1.2))

    async def _ask(self, name: str) -> frozenset[str]:
        """Look the name up once.

        The thread is a daemon, because nothing can end a resolver that hangs. There is only one, or
        every look-up would leave another behind.

        Raises:
            OSError: no answer, or an empty one.
        """
        if self._asking is not None and self._asking.is_alive():
            raise TimeoutError("the look-up before is still under way")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[frozenset[str]] = loop.create_future()

        def tell(found: frozenset[str], error: OSError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(found)

        def ask() -> None:
            found, error = frozenset[str](), None
            try:
                found = frozenset(member_name(address) for address in self._look_up(name))
                if not found:
                    error = OSError(f"{name} has no addresses")
            except OSError as failed:
                error = failed
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(tell, found, error)

        self._asking = threading.Thread(target=ask, name="late-members", daemon=True)
        self._asking.start()
        return await answer
