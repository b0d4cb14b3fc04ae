"""`Control.lanes`: the named ranges of shards."""

from __future__ import annotations

from late.control.database import Part
from late.control.lanes import lanes, resize
from late.control.lanes.layout import layout
from late.control.views import LaneView
from late.model.lanes import Lane, Layout


class LaneControl(Part):
    """Lanes. See `Control` for what all methods raise."""

    def all(self) -> list[LaneView]:
        """The named ranges of shards."""
        return lanes.lanes(self._database.engine)

    def layout(self) -> Layout:
        """The lanes as workers and producers follow them."""
        return layout(self._database.engine)

    def set_shards(self, lane: str, shards: int) -> LaneView:
        """Make a lane wider that was never resized; it never shrinks."""
        return lanes.set_shards(self._database.engine, lane, shards)

    def resize(self, lane: str, shards: int) -> Lane:
        """Give a lane another width while it works; order by key is kept."""
        return resize.resize(self._database.engine, lane, shards)

    def advance(self) -> None:
        """Go on with what resizes have begun. Workers do this every few seconds."""
        resize.advance(self._database.engine)
