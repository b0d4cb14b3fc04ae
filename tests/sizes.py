"""The three sizes of tests: long ones, ones that need a quiet machine, and all others.

`make test` leaves the long ones out; `make test-long`, and pytest by itself, run everything. A test
is long on one store only if the same test runs on another store in `make test`, or if it repeats
with more cases what a shorter test of the same file does. So each defect that a long test sees has
a shorter test that sees it as well.

A test that needs quiet kills processes, or waits for leases and pauses of real time. These run
after all others, two at a time.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG_RUN = os.environ.get("LATE_TEST_LONG", "") == "1"
"""Whether this is `make test-long`: budgets then have no end."""

STORES = ("sqlite", "postgres", "spanner")
ALL: tuple[str, ...] = ()

LONG: dict[str, tuple[str, ...]] = {
    # On Spanner's emulator, which takes one transaction at a time. Each runs on SQLite or
    # PostgreSQL in `make test`.
    "test_a_blocked_loop_loses_its_shards_to_a_peer_that_finishes_the_backlog": ("spanner",),
    "test_a_cancelled_task_never_runs_wherever_it_was": ("spanner",),
    "test_a_command_reaches_a_group_of_some_queues": ("spanner",),
    "test_a_consumer_gets_the_tasks_of_every_process_and_keeps_on_when_one_stops": ("spanner",),
    "test_a_key_with_a_period_outlives_its_task": ("spanner",),
    "test_a_lane_grows_and_never_shrinks": ("spanner",),
    "test_a_later_task_takes_the_place_of_one_that_waits": ("spanner",),
    "test_a_limit_takes_the_oldest_across_transactions": ("spanner",),
    "test_a_payload_that_no_producer_of_ours_made_is_buried_unrun": ("spanner",),
    "test_a_producer_killed_between_two_writes_leaves_no_half": ("spanner",),
    "test_a_producer_learns_of_the_resize_in_its_own_transaction": ("spanner",),
    "test_a_replay_says_so_and_a_new_task_does_not": ("spanner",),
    "test_a_reset_reaches_a_worker_that_runs": ("spanner",),
    "test_a_reset_to_now": ("spanner",),
    "test_a_reset_to_the_beginning": ("spanner",),
    "test_a_running_fleet_raises_no_false_alarm": ("spanner",),
    "test_a_running_worker_follows": ("spanner",),
    "test_a_schedule_fires_once_per_tick_with_two_workers": ("spanner",),
    "test_a_second_run_on_the_same_database_checks_its_own_trips": ("spanner",),
    "test_a_settlement_that_was_begun_before_a_pause_is_refused_after_it": ("spanner",),
    "test_a_stop_still_takes_answers_and_gives_back_what_nobody_has": ("spanner",),
    "test_a_task_goes_from_put_to_settled": ("spanner-fleet",),
    "test_a_task_that_kills_its_process_is_a_dead_letter_after_three": ("spanner",),
    "test_a_task_that_runs_on_holds_up_its_own_shard_alone": ("spanner",),
    "test_a_worker_publishes_what_a_bounded_queue_holds": ("spanner",),
    "test_a_worker_runs_a_task_and_stops_on_sigterm": ("spanner",),
    "test_a_worker_whose_slots_are_all_stuck_gives_its_shards_up": ("spanner",),
    "test_an_outage_of_the_target_costs_nothing": ("spanner",),
    "test_delays_and_the_ways_back_from_the_dead_letters_are_steps": ("spanner",),
    "test_each_leg_walks_an_index": ("spanner",),
    "test_every_end_is_told_to_who_waits": ("spanner",),
    "test_every_task_is_done_although_a_worker_is_killed": ("spanner",),
    "test_failures_of_one_group_are_its_own": ("spanner",),
    "test_keys_keep_their_order_4_64_8": ("spanner",),
    "test_no_group_loses_a_task_when_workers_are_killed": ("spanner",),
    "test_p1_p2_nothing_is_lost_and_nothing_aborted_runs": ("spanner",),
    "test_p3_p6_a_run_without_faults_starts_each_task_once": ("spanner",),
    "test_several_consumers_share_a_queue_and_nothing_runs_twice": ("spanner",),
    "test_silence_is_a_failed_attempt_and_a_failure_for_good_a_dead_letter": ("spanner-fleet",),
    "test_tasks_that_kill_their_worker_end_as_dead_letters_and_all_others_are_done": ("spanner",),
    "test_the_command_brings_up_what_it_needs_and_takes_it_down": ("spanner",),
    "test_the_command_shows_owners_and_history": ("spanner",),
    "test_the_four_counts_follow_a_task_through_its_life": ("spanner",),
    "test_what_a_worker_says_is_what_has_happened": ("spanner",),
    "test_what_was_put_off_while_nobody_asked_is_handed_out_at_once": ("spanner",),
    # Fleets of processes: one store in `make test`.
    "test_a_long_task_within_its_time_out_is_no_stall": ("postgres", "spanner"),
    "test_a_paused_owner_changes_nothing_when_it_wakes": ("sqlite", "spanner"),
    "test_a_rolling_deployment_costs_no_task_anything": ("sqlite", "spanner"),
    "test_a_stopped_worker_hands_over_at_once_and_a_killed_one_after_its_time": (
        "sqlite",
        "spanner",
    ),
    "test_each_effect_happens_once_over_kills": ("sqlite", "spanner"),
    "test_status_shows_who_is_leaving": ("sqlite", "spanner"),
    # A size of its own: another number of the same test stays.
    "test_rows_read_per_row_returned_behind_100_000_consumed_ones": ("kept",),
    "test_a_worker_whose_database_is_lost_says_so_once_and_ends": ("another database",),
    "test_rounds_are_measured_beside_a_held_snapshot": ALL,
    "test_a_core_that_is_passed_by_had_nothing_to_do": ALL,
}
"""Function -> the parts of its parameters with which it is long; all of them if there are none."""

QUIET = (
    "chaos/test_*",
    "integration/test_*kill*",
    "integration/test_pauses",
    "integration/test_poison",
    "integration/test_restarts",
    "integration/test_stalls",
    "integration/test_verify_running",
    "integration/test_serve",
    "integration/test_spanner_recovery",
)
"""Files whose tests need quiet."""


def is_long(function: str, parameters: str) -> bool:
    """Whether the test with these parameters (`sqlite-own`) is left out of `make test`."""
    parts = LONG.get(function)
    return parts is not None and (not parts or any(part in parameters for part in parts))


def needs_quiet(path: Path) -> bool:
    """Whether the tests of the file need a machine with little beside them."""
    return any(path.match(f"tests/{pattern}.py") for pattern in QUIET)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left out of `make test`, part of `make test-long`")
    config.addinivalue_line("markers", "quiet: runs after all others, two at a time")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function, _, rest = item.name.partition("[")
        if is_long(function, rest.removesuffix("]")):
            item.add_marker(pytest.mark.long)
        if needs_quiet(item.path):
            item.add_marker(pytest.mark.quiet)


class Budget:
    """Processor time for the cases of one test.

    A busy machine does not change how many cases a budget pays for, apart from what its caches
    cost. Of `floor` cases none is saved: so many must be enough to find the seeded defects.
    """

    def __init__(self, seconds: float, *, floor: int) -> None:
        self._left_s = seconds
        self._floor = floor

    def is_spent(self) -> bool:
        return not LONG_RUN and self._floor <= 0 and self._left_s <= 0

    def spend(self, seconds: float) -> None:
        """Count one case, which took so much processor time."""
        self._left_s -= seconds
        self._floor -= 1

    def limit(self, test: Callable[..., None]) -> Callable[..., None]:
        """Let a property's further cases pass unseen once the budget is spent.

        Between `given` and the function. After a failure every case runs, for Hypothesis repeats
        it and looks for a smaller one.
        """
        failed = False

        @functools.wraps(test)
        def run(**values: Any) -> None:
            nonlocal failed
            if self.is_spent() and not failed:
                return
            began = time.process_time()
            try:
                test(**values)
            except Exception:
                failed = True
                raise
            finally:
                self.spend(time.process_time() - began)

        return run
