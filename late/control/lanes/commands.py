"""`Control.lanes`: the named ranges of shards."""

from __future__ import annotations

from late.control.database import Part, on_engine
from late.control.lanes import lanes, resize
from late.control.lanes.layout import layout


class LaneControl(Part):
    """Lanes. See `Control` for what all methods raise."""

    all = on_engine(lanes.lanes)
    layout = on_engine(layout)
    create = on_engine(lanes.create)
    remove = on_engine(lanes.remove)
    set_shards = on_engine(lanes.set_shards)
    advance = on_engine(resize.advance)
    resize = on_engine(resize.resize)
