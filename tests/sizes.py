"""The three sizes of tests: long ones, ones that need a quiet machine, and all others.

`make test` leaves the long ones out; `make test-rest` runs those, `make test-long` and pytest by
itself run everything. CI runs both halves. A test is long on one store if the same test runs on
another store in `make test`, or if it repeats with more cases what a shorter test of the same file
does. A defect of the long one's own store may show in `make test-rest` alone.

A test that needs quiet kills processes, or waits for leases and pauses of real time. All others run
beside these with a lower priority. Tests that share a Java machine or a browser run in one process.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG_RUN = os.environ.get("LATE_TEST_LONG", "") == "1"
"""Whether this is `make test-long`: budgets then have no end."""
GROUP = os.environ.get("LATE_TEST_GROUP", "")
"""`quiet`, `shared` or `others`: the only tests this run asks for; empty for all."""
ONLY_LONG = os.environ.get("LATE_TEST_LONG", "") == "only"
"""Whether this run asks for the long tests alone."""

STORES = ("sqlite", "postgres", "spanner")
ALL: tuple[str, ...] = ()

LONG: dict[str, tuple[str, ...]] = {
    # What is said of each incident is compared word by word in `make test`, on made-up reports.
    "test_an_incident_is_named_with_its_cause": ALL,
    # Each engine makes the same report in `make test`, Spark in a session of this process.
    "test_the_cost_report_on_a_cluster_of_two_workers_is_the_local_one": ALL,
    # A part of them runs in `make test`.
    "test_celerys_tests_have_the_outcomes_of_the_page": ALL,
    # On Spanner's emulator, which takes one transaction at a time. Each runs on SQLite or
    # PostgreSQL in `make test`.
    "test_a_cancelled_task_never_runs_wherever_it_was": ("spanner",),
    "test_a_command_reaches_a_group_of_some_queues": ("spanner",),
    "test_a_consumer_gets_the_tasks_of_every_process_and_keeps_on_when_one_stops": ("spanner",),
    "test_a_key_with_a_period_outlives_its_task": ("spanner",),
    "test_a_lane_grows_and_never_shrinks": ("spanner",),
    "test_a_lane_is_worked_by_its_own_workers_and_by_those_of_all_lanes": ("spanner",),
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
    "test_a_second_run_on_the_same_database_checks_its_own_trips": ("sqlite", "spanner"),
    "test_a_stop_still_takes_answers_and_gives_back_what_nobody_has": ("spanner",),
    "test_a_task_goes_from_put_to_settled": ("spanner-fleet",),
    "test_a_worker_publishes_what_is_full": ("spanner",),
    "test_a_worker_runs_a_task_and_stops_on_sigterm": ("spanner",),
    "test_an_outage_of_the_target_costs_nothing": ("spanner",),
    "test_delays_and_the_ways_back_from_the_dead_letters_are_steps": ("spanner",),
    "test_each_leg_walks_an_index": ("spanner",),
    "test_each_of_several_processes_serves_the_lanes_of_the_command": ("spanner",),
    "test_every_end_is_told_to_who_waits": ("spanner",),
    "test_every_task_is_done_although_a_worker_is_killed": ("spanner",),
    "test_both_run_tasks_of_both_and_take_over_from_each_other": ("spanner",),
    "test_failures_of_one_group_are_its_own": ("spanner",),
    "test_keys_keep_their_order_4_64_8": ("spanner",),
    "test_p1_p2_nothing_is_lost_and_nothing_aborted_runs": ("spanner",),
    "test_p3_p6_a_run_without_faults_starts_each_task_once": ("spanner",),
    "test_several_consumers_share_a_queue_and_nothing_runs_twice": ("spanner",),
    "test_silence_is_a_failed_attempt_and_a_failure_for_good_a_dead_letter": ("spanner",),
    "test_the_command_brings_up_what_it_needs_and_takes_it_down": ("spanner",),
    "test_the_command_shows_owners_and_history": ("spanner",),
    "test_the_four_counts_follow_a_task_through_its_life": ("spanner",),
    "test_what_a_worker_says_is_what_has_happened": ("spanner",),
    "test_what_was_put_off_while_nobody_asked_is_handed_out_at_once": ("spanner",),
    "test_what_nobody_handles_waits_at_once_and_is_not_offered": ("spanner",),
    "test_what_one_worker_cannot_run_another_runs_as_the_same_attempt": ("spanner",),
    "test_a_cancel_of_what_nobody_knows_ends": ("spanner",),
    "test_show_says_where_a_task_runs": ("spanner",),
    "test_all_that_match_are_cancelled_and_rescheduled": ("spanner",),
    "test_a_filter_takes_those_that_match_and_no_others": ("spanner",),
    "test_each_task_is_in_the_list_of_its_state": ("spanner",),
    "test_a_cancel_that_is_rolled_back_asks_nothing": ("spanner",),
    "test_a_database_that_lost_the_resize_is_written_by_what_it_has": ("spanner",),
    "test_a_dead_letter_is_sent_back_with_other_arguments": ("spanner",),
    "test_a_delay_a_retry_and_a_dead_letter": ("spanner",),
    "test_a_deleted_group_is_gone_and_its_zombies_stay_out": ("spanner",),
    "test_a_drain_that_cannot_end_says_so": ("spanner",),
    "test_a_dry_run_looks_at_so_many_and_says_where_it_stopped": ("spanner",),
    "test_a_group_begins_at_the_beginning_or_now": ("spanner",),
    "test_a_group_of_some_queues": ("spanner",),
    "test_a_group_that_is_behind_is_called_so": ("spanner",),
    "test_a_handler_in_node_executes_tasks": ("spanner",),
    "test_a_healthy_database_has_no_fault": ("spanner",),
    "test_a_key_is_free_again_when_its_task_has_ended": ("spanner",),
    "test_a_moment_is_exact_and_found_by_the_journal": ("spanner",),
    "test_a_paused_group_is_told_to_the_workers": ("spanner",),
    "test_a_paused_group_rests_and_the_others_go_on": ("spanner",),
    "test_a_producer_follows_what_is_closed_or_full": ("spanner",),
    "test_a_queue_as_a_whole_is_given_to_a_target": ("spanner",),
    "test_a_redriven_dead_letter_runs_again": ("spanner",),
    "test_a_redriven_task_runs_although_its_owner_never_stopped": ("spanner",),
    "test_a_remote_task_is_enqueued_pushed_and_settled": ("spanner",),
    "test_a_reschedule_moves_a_far_task_here_and_a_near_one_away": ("spanner",),
    "test_a_reset_group_holds_the_log_from_there": ("spanner",),
    "test_a_reset_of_a_paused_group_runs_nothing_twice": ("spanner",),
    "test_a_reset_to_a_moment": ("spanner",),
    "test_a_result_comes_back_as_the_type_that_is_asked_for": ("spanner",),
    "test_a_result_that_a_target_gives_is_kept_where_it_is_wanted": ("spanner",),
    "test_a_row_that_commits_behind_the_cursor_is_counted": ("spanner",),
    "test_a_schedule_run_by_hand_and_the_workers_in_status": ("spanner",),
    "test_a_task_is_found_where_its_id_says_and_elsewhere_only_when_asked": ("spanner",),
    "test_a_time_out_by_knob_ends_what_its_handler_would_not": ("spanner",),
    "test_a_unique_key_is_free_again_after_its_task": ("spanner",),
    "test_a_worker_that_knows_of_no_resize_runs_nothing_of_it": ("spanner",),
    "test_a_worker_whose_settlements_are_refused_says_so_and_goes_on_when_they_are_not": (
        "spanner",
    ),
    "test_a_worker_whose_shards_were_taken_learns_of_it": ("spanner",),
    "test_a_worker_without_a_schema_says_so": ("spanner",),
    "test_an_effect_is_remembered_while_its_task_can_come_again": ("spanner",),
    "test_an_expired_task_does_not_run": ("spanner",),
    "test_an_interrupted_task_costs_no_attempt": ("spanner",),
    "test_damage_is_found": ("spanner",),
    "test_damage_is_named": ("spanner",),
    "test_each_mistake_is_found_and_named": ("spanner",),
    "test_each_owner_has_a_term_and_the_last_one_has_the_shard": ("spanner",),
    "test_every_action_is_audited": ("spanner",),
    "test_every_change_leaves_its_row_in_the_audit": ("spanner",),
    "test_every_filter_selects": ("spanner",),
    "test_every_group_runs_every_task_once": ("spanner",),
    "test_every_step_of_a_task_is_shown": ("spanner",),
    "test_filters_choose_the_accounts": ("spanner",),
    "test_freshness_is_of_what_is_due_and_not_of_what_was_put_off": ("spanner",),
    "test_groups_see_the_same_log_apart": ("spanner",),
    "test_knobs_are_kept_audited_and_taken_back": ("spanner",),
    "test_letters_of_many_shards_go_the_oldest_first_and_are_read_once": ("spanner",),
    "test_many_that_died_in_one_moment_are_passed_over_and_not_shown_for_ever": ("spanner",),
    "test_nothing_is_kept_unasked_nor_for_longer": ("spanner",),
    "test_outcomes_of_handlers": ("spanner",),
    "test_pages_follow_one_another_and_miss_none": ("spanner",),
    "test_remove_forgets_and_unknown_names_are_refused": ("spanner",),
    "test_shards_without_owner_name_the_list_of_members_as_a_cause": ("spanner",),
    "test_signals_of_a_queue_before_and_after_its_work": ("spanner",),
    "test_statements_do_not_grow_with_shards": ("spanner",),
    "test_tasks_of_a_page_are_one_call_and_end_each_for_itself": ("spanner",),
    "test_tasks_of_one_key_run_one_after_the_other_in_order": ("spanner",),
    "test_tasks_run_with_the_transaction_and_not_without_it": ("spanner",),
    "test_the_first_of_all_shards_may_all_be_of_one": ("spanner",),
    "test_the_log_is_kept_for_a_group_and_let_go_with_it": ("spanner",),
    "test_the_log_is_kept_for_replays": ("spanner",),
    "test_the_shards_of_a_killed_worker_move_after_its_ttl_and_not_before": ("spanner",),
    "test_the_stores_refusal_is_reported": ("spanner",),
    "test_three_workers_agree": ("spanner",),
    "test_two_redrives_at_once_send_each_task_back_once": ("spanner",),
    "test_two_workers_share_and_a_stopped_one_hands_over_at_once": ("spanner",),
    "test_waiting_for_a_token": ("spanner",),
    "test_waiting_returns_when_the_last_task_is_settled": ("spanner",),
    "test_what_a_reset_leaves_out_lets_go_of_its_keys_and_schedules": ("spanner",),
    "test_what_a_reset_will_read_again_is_kept_although_it_was_settled_long_ago": ("spanner",),
    "test_what_a_target_was_at_is_in_the_ledger": ("spanner",),
    "test_what_its_key_holds_back_is_not_done": ("spanner",),
    "test_what_keys_hold_back_is_counted_up_to_the_limit": ("spanner",),
    # Rules, seals, offers and the shim are above the seam. Others of each file stay on Spanner.
    "test_an_older_worker_that_declares_nothing_beside_a_newer_one": ("spanner",),
    "test_a_parameter_that_only_one_version_takes": ("spanner",),
    "test_its_rules_are_those_of_the_worker_that_runs_it": ("spanner",),
    "test_the_form_of_a_seal_is_a_setting": ("spanner",),
    "test_what_changes_a_task_legitimately_goes_on": ("spanner",),
    "test_ticks_run_and_their_payload_opens_nothing_else": ("spanner",),
    "test_another_worker_opens_what_its_owner_cannot_run": ("spanner",),
    "test_nothing_opens_after_the_drop": ("spanner",),
    "test_a_row_under_another_subject_is_refused": ("spanner",),
    "test_a_key_of_another_subject_is_refused": ("spanner",),
    "test_what_earlier_attempts_said_goes_too": ("spanner",),
    "test_a_rotation_of_the_ring_keeps_the_keys_of_subjects": ("spanner",),
    "test_what_a_task_raises_ends_it_at_the_first_attempt": ("spanner",),
    "test_copies_of_a_task_that_has_ended_do_not_run": ("spanner",),
    "test_copies_of_a_parked_task_leave_it_as_it_is": ("spanner",),
    "test_copies_that_wait_beside_their_row_do_not_run": ("spanner",),
    "test_a_revoked_token_ends_what_is_open_in_a_deployment": ("spanner",),
    "test_a_child_process_reads_the_key_itself": ("spanner",),
    "test_a_producer_with_sqlalchemy_is_served": ("spanner",),
    "test_the_failures_of_all_workers_are_one_outage": ("spanner",),
    "test_a_few_tasks_that_fail_are_at_fault_themselves": ("spanner",),
    "test_headers_of_a_receiver_reach_the_task": ("spanner",),
    "test_a_signature_is_a_call_for_later": ("spanner",),
    "test_signals_have_what_celery_gives": ("spanner",),
    "test_batches_and_tasks_by_name_have_subjects": ("spanner",),
    # What Celery's users see is made of tasks, workflows and settings. Those run on Spanner.
    "test_a_result_is_the_first_argument_and_keeps_its_type": ("spanner",),
    "test_shapes": ("spanner",),
    "test_an_error_ends_it_and_the_id_goes_to_link_error": ("spanner",),
    "test_a_link_error_gets_the_request_the_error_and_its_text": ("spanner",),
    "test_a_link_error_hears_of_a_task_that_has_expired": ("spanner",),
    "test_the_body_of_a_chord_has_a_link_error": ("spanner",),
    "test_links_follow_the_task_that_was_called": ("spanner",),
    "test_ignore_starts_nothing_after_it": ("spanner",),
    "test_options_are_for_the_first_tasks_and_commit_with_the_rows": ("spanner",),
    "test_signals_tell_of_each_task": ("spanner",),
    "test_revoke_ends_the_whole": ("spanner",),
    "test_an_id_of_the_caller_is_the_task_s_and_names_one_task": ("spanner",),
    "test_an_id_of_the_caller_can_be_revoked": ("spanner",),
    "test_a_worker_sets_a_rate_where_the_queue_has_no_settings": ("spanner",),
    "test_without_a_transaction_a_call_opens_one_where_that_is_set": ("spanner",),
    "test_what_a_call_asks_for_is_in_the_row": ("spanner",),
    "test_a_soft_limit_is_raised_in_the_task_and_ends_it": ("spanner",),
    "test_retries_end_with_a_success_or_with_the_error": ("spanner",),
    "test_the_methods_of_a_base_class_are_called": ("spanner",),
    "test_a_receiver_that_raises_harms_nothing": ("spanner",),
    "test_revoke_joins_the_transaction_or_opens_one": ("spanner",),
    # Refused before the database is asked, or by a rule that is the same for each.
    "test_a_filter_that_means_nothing_is_refused": ("spanner",),
    "test_an_edit_is_refused_where_it_can_mean_nothing": ("spanner",),
    "test_bad_declarations_write_nothing": ("spanner",),
    "test_bad_input_is_refused_before_any_sql": ("spanner",),
    "test_what_makes_no_group": ("spanner",),
    "test_a_width_that_cannot_be_is_refused": ("spanner",),
    "test_wrong_settings_are_refused": ("spanner",),
    "test_a_task_that_keeps_its_result_is_still_called_like_a_function": ("spanner",),
    "test_a_target_that_nobody_configured_stops_the_start": ("spanner",),
    "test_a_secret_that_is_not_there_stops_the_start": ("spanner",),
    "test_what_is_no_workflow_is_refused": ("spanner",),
    "test_a_knob_of_another_release_is_a_fault": ("spanner",),
    # Decided in the worker, the producer or an exporter, and not by the database.
    "test_the_shards_of_a_dead_worker_do_not_wait_for_the_clock": ("spanner",),
    "test_an_outage_makes_no_dead_letters": ("spanner",),
    "test_poison_among_good_tasks_dies": ("spanner",),
    "test_what_one_consumer_cannot_run_another_gets_soon": ("spanner",),
    "test_why_it_waits_can_be_seen": ("spanner",),
    "test_what_waits_under_a_former_name_runs": ("spanner",),
    "test_a_check_finds_what_an_app_could_not_run": ("spanner",),
    "test_a_check_compares_an_app_with_the_live_workers": ("spanner",),
    "test_a_key_is_added_and_goes_when_it_is_void": ("spanner",),
    "test_at_once_leaves_the_new_key_alone": ("spanner",),
    "test_helpers_for_tests_know_subjects": ("spanner",),
    "test_a_consumer_gets_what_the_key_opens": ("spanner",),
    "test_waiting_tasks_are_no_misfits": ("spanner",),
    "test_the_commands": ("spanner",),
    "test_an_enqueue_after_the_drop_is_refused": ("spanner",),
    "test_an_async_producer_is_served": ("spanner",),
    "test_a_database_that_is_away_costs_no_attempt": ("spanner",),
    "test_a_drop_under_a_running_worker_ends_what_waits": ("spanner",),
    "test_rows_with_altered_options_never_run": ("spanner",),
    "test_a_schedule_that_comes_under_the_seal_moves_its_intervals_once": ("spanner",),
    "test_copies_of_a_running_task_do_not_run": ("spanner",),
    "test_what_nobody_can_run_waits_where_it_can_be_seen": ("spanner",),
    "test_every_reader_at_every_step_of_a_compaction": ("spanner",),
    "test_a_kill_after_each_step_is_gone_on_with_by_another_worker": ("spanner",),
    # The consumer is the same one, and the queue is judged on SQLite.
    "test_a_consumer_passes_the_script_on_postgres": ALL,
    # Fleets of processes: one store in `make test`.
    "test_each_stage_is_started_once_and_every_result_is_right": ("postgres", "spanner"),
    "test_a_worker_that_is_told_so_exits_when_it_is_stuck": ("postgres", "spanner"),
    "test_a_task_that_hangs_leaves_slots_to_others": ("postgres", "spanner"),
    "test_a_task_that_runs_on_holds_up_its_own_shard_alone": ("sqlite", "spanner"),
    "test_a_task_that_kills_its_process_is_a_dead_letter_after_three": ("sqlite", "spanner"),
    "test_a_long_task_within_its_time_out_is_no_stall": ("postgres", "spanner"),
    "test_a_paused_owner_changes_nothing_when_it_wakes": ("sqlite", "spanner"),
    "test_a_rolling_deployment_costs_no_task_anything": ("sqlite", "spanner"),
    "test_a_stopped_worker_hands_over_at_once_and_a_killed_one_after_its_time": (
        "sqlite",
        "spanner",
    ),
    "test_each_effect_happens_once_over_kills": ("sqlite", "spanner"),
    "test_status_shows_who_is_leaving": ("sqlite", "spanner"),
    "test_p4_an_owner_that_slept_past_its_lease_changes_nothing": ("sqlite",),
    "test_p5_each_task_is_settled_once_whatever_becomes_of_the_commit": ("sqlite",),
    "test_p8_timers_are_neither_early_nor_lost": ("sqlite",),
    "test_p9_a_schedule_fires_once_per_tick": ("sqlite",),
    "test_tasks_that_kill_their_worker_end_as_dead_letters_and_all_others_are_done": (
        "sqlite",
        "spanner",
    ),
    "test_no_group_loses_a_task_when_workers_are_killed": ("sqlite", "spanner"),
    "test_a_blocked_loop_loses_its_shards_to_a_peer_that_finishes_the_backlog": (
        "sqlite",
        "spanner",
    ),
    "test_a_worker_whose_slots_are_all_stuck_hands_its_shards_over": ("sqlite", "spanner"),
    "test_a_settlement_that_was_begun_before_a_pause_is_refused_after_it": ("sqlite", "spanner"),
    # A restored dump is also in another test; SQLite's backup stays.
    "test_a_restore_loses_no_task_and_repeats_only_what_was_not_recorded": ("dump",),
    # A size of its own: another number of the same test stays.
    "test_rows_read_per_row_returned_do_not_grow_with_consumed_ones": ("100000",),
    "test_a_worker_whose_database_is_lost_says_so_once_and_ends": ("another database",),
    "test_rounds_are_measured_beside_a_held_snapshot": ALL,
    # A bench of PostgreSQL alone. The same bench runs on SQLite.
    "test_wal_is_the_difference_to_the_same_producers_without_a_worker": ALL,
    "test_a_core_that_is_passed_by_had_nothing_to_do": ALL,
    # What it measures runs in `make test` too: with late alone, and in the bench itself.
    "test_a_small_run_measures_what_it_is_asked_for": ALL,
    # Most of them over worlds, as others are that stay.
    "test_a_sample_is_found": ("more",),
}
"""Function -> the parts of its parameters with which it is long; all of them if there are none."""

QUIET = (
    "chaos/test_*",
    "consumers/test_consumers",
    "integration/test_*kill*",
    "integration/test_drills",
    "integration/test_pauses",
    "integration/test_poison",
    "integration/test_restarts",
    "integration/test_stalls",
    "integration/test_verify_running",
    "integration/test_serve",
    "integration/test_spanner_recovery",
)
"""Files whose tests need quiet."""

SHARED = ("spark/test_*", "web/test_*", "integration/test_schemathesis")
"""Files whose tests share what is slow to start, or slow to collect: each process would do it."""


def is_long(function: str, parameters: str) -> bool:
    """Whether the test with these parameters (`sqlite-own`) is left out of `make test`."""
    parts = LONG.get(function)
    return parts is not None and (not parts or any(part in parameters for part in parts))


def is_of(patterns: tuple[str, ...], path: Path) -> bool:
    """Whether the file is one of those that the patterns name."""
    return any(path.match(f"tests/{pattern}.py") for pattern in patterns)


def group_of(path: Path) -> str:
    """Which of `quiet`, `shared` and `others` all tests of the file belong to."""
    if is_of(QUIET, path):
        return "quiet"
    return "shared" if is_of(SHARED, path) else "others"


def is_asked_for(path: Path) -> bool:
    """Whether the file may have a test of the group and the size that this run asks for."""
    if GROUP and group_of(path) != GROUP:
        return False
    return not ONLY_LONG or any(
        name in LONG for name in re.findall(r"def (test_\w+)\(", path.read_text())
    )


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what has no test for this run: to import everything takes each process seconds."""
    if not GROUP and not ONLY_LONG:
        return None
    if collection_path.is_dir():
        files = collection_path.rglob("test_*.py")
        return None if any(is_asked_for(path) for path in files) else True
    is_test = collection_path.match("test_*.py")
    return True if is_test and not is_asked_for(collection_path) else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left out of `make test`, part of `make test-long`")
    config.addinivalue_line("markers", "quiet: has the processors before all others")
    config.addinivalue_line(
        "markers", "shared: shares Java or a browser, so it runs in one process"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        function, _, rest = item.name.partition("[")
        if is_long(function, rest.removesuffix("]")):
            item.add_marker(pytest.mark.long)
        group = group_of(item.path)
        if group != "others":
            item.add_marker(group)


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
