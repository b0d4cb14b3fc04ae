"""From single waits to pairs of transactions, ranked by the time that they cost each other.

A wait comes from one of three views of the same trouble: the *client's* record (the event
`conflict`: what was aborted, and the time since it began), the *server's* own (locks that are
waited for), and the locks that a *worker* has looked at all along. Each may have seen the same
wait, so a pair's time is the largest of the sums, and not all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from late.control.analyze.advice import advice

View = Literal["client", "server", "worker"]

UNKNOWN = "unknown"
PROCESS = "process "
"""The beginning of a name for who is known by the server's process alone."""
CTID = " ctid ("
"""Part of the name of a row whose key is not known."""
PLACES_MAX, STATEMENTS_MAX = 5, 4


class Wait(msgspec.Struct, frozen=True):
    """One transaction that was ended or held up by another one, or several alike."""

    view: View
    kind: str
    """A kind of `late.observability.conflicts`, or `waiting`."""
    tag: str
    """The transaction that has lost the time."""
    other: str
    """The transaction that was in the way; empty: not known."""
    place: str
    """The row or the range, as far as it is known, else the table."""
    lost_s: float
    count: int = 1
    attempt: int = 1
    statement: str = ""
    other_statement: str = ""
    other_idle: bool = False
    """The other one held its locks and had no statement running."""


class Transaction(msgspec.Struct, frozen=True):
    """The database's own statistics of the transactions with one tag."""

    tag: str
    attempts: int
    aborts: int
    average_s: float
    tables: list[str]


class Place(msgspec.Struct, frozen=True):
    """A row or a range that a pair met on."""

    place: str
    lost_s: float
    count: int


class Statement(msgspec.Struct, frozen=True):
    """A statement that waited or was waited for."""

    tag: str
    statement: str


class Pair(msgspec.Struct, frozen=True):
    """Two kinds of transactions, maybe the same, that get into each other's way."""

    tags: tuple[str, str]
    lost_s: float
    count: int
    kinds: dict[str, int]
    waited_s: dict[str, float]
    """Seconds that each of the two has lost, by its tag."""
    attempts_max: int
    places: list[Place]
    statements: list[Statement]
    advice: list[str]


class Report(msgspec.Struct, frozen=True):
    """The pairs that were seen in `for_s` seconds."""

    for_s: float
    lost_s: float
    pairs: list[Pair]
    transactions: list[Transaction] = []
    notes: list[str] = []


class Change(msgspec.Struct, frozen=True):
    """A pair in two reports, in seconds lost per minute. None: that report does not have it."""

    tags: tuple[str, str]
    before: float | None
    after: float | None


def report(
    waits: Iterable[Wait],
    *,
    for_s: float,
    transactions: Sequence[Transaction] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Make the report: pairs, the costliest first."""
    by_pair: dict[tuple[str, str], list[Wait]] = defaultdict(list)
    for wait in named(list(waits)):
        one, two = sorted((wait.tag or UNKNOWN, wait.other or UNKNOWN))
        by_pair[one, two].append(wait)
    pairs = [_pair(tags, found) for tags, found in by_pair.items()]
    pairs.sort(key=lambda pair: (-pair.lost_s, -pair.count, pair.tags))
    return Report(
        for_s=round(for_s, 3),
        lost_s=round(sum(pair.lost_s for pair in pairs), 6),
        pairs=pairs,
        transactions=sorted(transactions, key=lambda each: -each.aborts),
        notes=list(notes),
    )


def view_of(kind: str) -> View:
    """Return the view that a recorded conflict is of."""
    return "worker" if kind == "waiting" else "client"


def named(waits: Sequence[Wait]) -> Iterator[Wait]:
    """Name the other one of an aborted transaction where the locks say who it was.

    PostgreSQL tells the victim of a deadlock a process only. Whom its tag has waited with for
    longest is the best answer: a deadlock begins with such a wait. One kind of transaction takes
    its rows in one order, so for a deadlock another kind goes before its own.
    """
    met: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for wait in waits:
        if wait.view != "client" and wait.tag and wait.other:
            met[wait.tag][wait.other] += wait.lost_s
            met[wait.other][wait.tag] += wait.lost_s
    for wait in waits:
        unknown = not wait.other or wait.other.startswith(PROCESS)
        if wait.view == "client" and unknown and (others := met.get(wait.tag)):
            yield msgspec.structs.replace(wait, other=_likeliest(wait, others))
        else:
            yield wait


def _likeliest(wait: Wait, others: Mapping[str, float]) -> str:
    """Return the tag, of those that a transaction met, that was most likely in its way."""
    apart = wait.kind == "deadlock"
    return max(others, key=lambda tag: (apart and tag != wait.tag, others[tag]))


def _pair(tags: tuple[str, str], waits: Sequence[Wait]) -> Pair:
    views = {view: [w for w in waits if w.view == view] for view in get_args(View)}
    # The largest view tells the time and the number; all tell places, statements and kinds.
    main = max(views.values(), key=lambda found: sum(w.lost_s for w in found))
    kinds: Counter[str] = Counter()
    for found in views.values():
        for wait in found:
            kinds[wait.kind] += wait.count
    waited: dict[str, float] = defaultdict(float)
    for wait in main:
        waited[wait.tag or UNKNOWN] += wait.lost_s
    statements = dict.fromkeys(
        (tag or UNKNOWN, text)
        for wait in sorted(waits, key=lambda w: -w.lost_s)
        for tag, text in ((wait.tag, wait.statement), (wait.other, wait.other_statement))
        if text
    )
    # A row by its key says more than one by its place in the table.
    keyed = any(w.place and CTID not in w.place for w in main)
    places = _places(main if keyed else waits)
    attempts_max = max(wait.attempt for wait in waits)
    return Pair(
        tags=tags,
        lost_s=round(sum(waited.values()), 6),
        count=sum(wait.count for wait in main),
        kinds=dict(sorted(kinds.items())),
        waited_s={tag: round(s, 6) for tag, s in sorted(waited.items())},
        attempts_max=attempts_max,
        places=places,
        statements=[Statement(*each) for each in list(statements)[:STATEMENTS_MAX]],
        advice=advice(
            tags,
            kinds,
            [place.place for place in places],
            directions=len(waited),
            attempts_max=attempts_max,
            idle=any(w.other_idle for w in waits),
            statements=[text for _, text in statements],
        ),
    )


def _places(waits: Sequence[Wait]) -> list[Place]:
    lost: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for wait in waits:
        if wait.place:
            lost[wait.place] += wait.lost_s
            count[wait.place] += wait.count
    ranked = sorted(lost, key=lambda place: (_vague(place), -lost[place], place))
    return [Place(p, round(lost[p], 6), count[p]) for p in ranked[:PLACES_MAX]]


def _vague(place: str) -> int:
    """Return how little a place says: 0 for a row by its key, 2 for one by its place in a table."""
    return 2 if CTID in place else int("(" not in place)


def compare(before: Report, after: Report) -> list[Change]:
    """Return each pair of two reports, those that got worse first."""
    rates = [
        {pair.tags: pair.lost_s * 60 / max(each.for_s, 0.001) for pair in each.pairs}
        for each in (before, after)
    ]
    first, second = rates
    found = [
        Change(tags, first.get(tags), second.get(tags)) for tags in dict.fromkeys([*second, *first])
    ]
    return sorted(found, key=lambda each: (each.before or 0.0) - (each.after or 0.0))
