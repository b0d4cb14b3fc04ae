"""The parts of a path that the page reads: an address that can lead to nothing is an unknown path.

So it gets a page with the status 404, and no database is asked for what it cannot store.
"""

from __future__ import annotations

from starlette.convertors import IntegerConvertor, StringConvertor


class TextInPath(StringConvertor):
    """A text of one segment. PostgreSQL stores none with a NUL."""

    regex = r"[^/\x00]+"


class ShardInPath(IntegerConvertor):
    """The number of a shard. There are at most 4,096, so longer numbers are none."""

    regex = "[0-9]{1,4}"
