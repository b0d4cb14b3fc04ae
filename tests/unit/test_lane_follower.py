"""A worker tells of lanes that it or its tasks name and that are not there."""

from __future__ import annotations

import logging

import pytest

import late
from late.model.lanes import Lane, Layout
from late.worker.lane_follower import LaneFollower

DEFAULT = Lane()
BULK = Lane("bulk", 1024, 2)


def app_with(lane: str | None) -> late.App:
    app = late.App("sqlite:///none.db")

    @app.task(lane=lane)
    def resize(n: int) -> None: ...

    return app


def test_a_lane_that_a_task_names_and_that_is_missing_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="late.worker")
    taken: list[Layout] = []
    follower = LaneFollower(app_with("bulk"), (), taken.append)
    layouts = [Layout((DEFAULT,)), Layout((DEFAULT,)), Layout((DEFAULT, BULK))]
    for layout in layouts:
        follower.take(layout)
    assert taken == layouts
    assert caplog.messages == [
        "there is no lane bulk, so resize cannot be enqueued: late shards --lane bulk --create N"
    ]
    follower.take(Layout((DEFAULT,)))
    assert len(caplog.messages) == 2, "it has gone again"


def test_a_worker_says_that_its_lane_was_removed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="late.worker")
    follower = LaneFollower(app_with(None), ["bulk"], lambda layout: None)
    follower.take(Layout((DEFAULT, BULK)))
    assert caplog.messages == []
    follower.take(Layout((DEFAULT,)))
    assert caplog.messages == [
        "there is no lane bulk any more: this worker serves it, and runs nothing of it until the"
        " lane is made again"
    ]


def test_lanes_are_adopted_by_the_app() -> None:
    app = app_with("bulk")
    LaneFollower(app, (), lambda layout: None).take(Layout((DEFAULT, BULK)))
    assert app.unknown_lanes([app.tasks["resize"].call(1)]) == set()
