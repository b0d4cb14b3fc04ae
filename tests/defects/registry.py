"""The seeded defects: what each breaks, and which test finds it, for which reason.

`D1` to `D16` are those of the list that the design began with, as they read for this design (a
journal instead of an offset, a unique number instead of a lock); the others are mistakes that this
design invites. `python -m tests.defects` shows that each is found.
"""

from __future__ import annotations

from tests.defects import background, disk, transactions, workflows
from tests.defects import components as c
from tests.defects import delivery as d
from tests.defects import sizing as z
from tests.defects import statements as s
from tests.defects.defect import Defect

JOURNAL = "tests/conformance/test_journal.py::"
COMPANY = "tests/unit/test_company.py::"
CAUTION = "tests/unit/test_crash_suspects.py::"
COMMANDS = "tests/unit/test_core_commands.py::"
API = "tests/unit/test_api_bad_input.py::"
AUTOSCALER = "tests/unit/test_autoscaler_policy.py::"
LANES = "tests/unit/test_lanes.py::"
COMPACTION_FAULTS = "tests/conformance/test_compaction_faults.py::"
WAKING = "tests/integration/test_postgres_waking_faults.py::"
COMPACTION = "tests/conformance/test_compaction.py::"
PRUNE = "tests/conformance/test_prune.py::"
TAIL = "tests/conformance/test_tail.py::"
FENCE = (
    "tests/integration/test_postgres_fence.py::"
    "test_a_settlement_that_is_held_up_before_it_writes_is_fenced"
)
POSTGRES = "tests/integration/test_postgres_tail.py::"

_ALL = (
    Defect(
        "D1", "PostgreSQL's cursor is the highest xid instead of a snapshot",
        s.scalar_cursor, POSTGRES + "test_a_lower_xid_that_commits_later_is_not_lost",
        r"TimeoutError",
    ),
    Defect(
        "D1b", "a cursor covers all below its highest xid, also what was running",
        c.scalar_cursor, "postgres", r"S[23]:|E1:|S6:", worlds=20,
    ),
    Defect(
        "D2", "the checkpoint is a cursor without the open tasks",
        c.scalar_checkpoint, "worlds", r"S2:", worlds=5, fast=True,
    ),
    Defect(
        "D3", "the snapshot that becomes the cursor is taken after the rows",
        s.snapshot_after_the_rows, POSTGRES + "test_the_hammer_loses_and_repeats_nothing",
        r"TimeoutError",
    ),
    Defect(
        "D4", "the tail reads in a transaction that stays open",
        s.tail_in_an_open_transaction, TAIL + "test_an_idle_tail_sees_what_comes_later[postgres]",
        r"TimeoutError",
    ),
    Defect(
        "D5", "the fence is a look at the lease, and the number whatever comes next",
        s.plain_look, FENCE,
        r"SettleResult",
    ),
    Defect(
        "D6", "the same with FOR KEY SHARE, for which a takeover does not wait",
        s.weak_lock, FENCE,
        r"SettleResult",
    ),
    Defect(
        "D7", "no fence: every settlement is taken",
        s.no_fence, JOURNAL + "test_a_takeover_fences_the_old_owner[sqlite]",
        r"SettleResult", fast=True,
    ),
    Defect(
        "D8", "a task counts as settled when it is handed to a slot",
        c.settled_before_run, "worlds", r"S2:|S6:|E1:", worlds=5, fast=True,
    ),
    Defect(
        "D9", "a repeated settlement is refused",
        s.not_idempotent, JOURNAL + "test_settling_twice_is_quiet_and_happens_once[sqlite]",
        r"SettleResult", fast=True,
    ),
    Defect(
        "D10", "the cursor is the timestamp of the last row: of a tie, half is lost",
        c.last_rows_timestamp, "spanner", r"S2:|E1:|S6:", worlds=40, fast=True,
    ),
    Defect(
        "D11", "a shard acquired anew goes on with what was in memory",
        c.memory_outlives_the_lease, "worlds", r"S[2346]:|S11:|E1:", worlds=40,
    ),
    Defect(
        "D12", "maintenance takes what is old",
        s.prune_by_age, PRUNE + "test_age_decides_nothing[sqlite]", r"assert", fast=True,
    ),
    Defect(
        "prune-by-an-outline", "retention takes unknown open tasks of the past for none",
        s.prune_by_an_outline,
        "tests/integration/test_sqlite_outlines.py::"
        "test_what_was_open_at_the_horizon_is_kept_for_replays",
        r"assert", fast=True,
    ),
    Defect(
        "D13", "a timer's row goes when it is read, and not with the task's end",
        c.timer_deleted_when_read, "worlds", r"S2:", worlds=30, fast=True,
    ),
    Defect(
        "D14", "SQLite's log without AUTOINCREMENT",
        s.rowids_given_again, TAIL + "test_an_idle_tail_sees_what_comes_later[sqlite]",
        r"StoreRefused: .*AUTOINCREMENT",
    ),
    Defect(
        "D15", "retries without a budget",
        c.retries_without_a_budget, "worlds", r"S10:", worlds=40, fast=True,
    ),
    Defect(
        "knob-blocks-others", "a task that a knob holds back holds up those behind it",
        c.a_knob_that_blocks_others,
        "tests/unit/test_core_queue_settings.py::test_a_paused_queue_holds_nobody_up", r"assert",
        fast=True,
    ),
    Defect(
        "knob-without-mark", "a task that was parked for a knob needs no mark after a death",
        c.parked_for_a_knob_without_a_mark,
        "tests/unit/test_core_queue_settings.py::test_random_lives_under_knobs_that_turn",
        r"started without its mark",
    ),
    Defect(
        "D16", "heartbeats share the event loop with the work",
        c.heartbeat_in_the_works_loop,
        "tests/unit/test_heartbeat.py::test_a_blocked_event_loop_does_not_stop_it",
        r"acquire\(",
    ),
    Defect(
        "trust-without-end", "whoever was trusted once may start tasks for ever",
        c.trust_without_end, "worlds", r"S12:", worlds=40,
    ),
    Defect(
        "trust-from-reply", "trust counts from the answer to a heartbeat, not from its question",
        c.trust_from_the_reply, "worlds", r"S12:", worlds=40,
    ),
    Defect(
        "clock-ahead", "the estimate of the database's clock is 50 ms ahead",
        c.clock_ahead, "worlds", r"S8:", worlds=20, fast=True,
    ),
    Defect(
        "usage-twice", "usage stays in the ledger for a second settlement",
        c.usage_twice, "worlds", r"S6: \d+ ends are counted", worlds=5,
    ),
    Defect(
        "burnt-attempt", "a snooze or an interruption costs an attempt",
        c.deferring_burns_an_attempt, "worlds", r"S11:|S9:", worlds=40,
    ),
    Defect(
        "open-forgotten", "a new owner does not fetch what was open",
        c.open_set_forgotten, "postgres", r"S2:", worlds=20, fast=True,
    ),
    Defect(
        "key-freed-early", "a unique key is free after its task's first failure",
        c.unique_key_freed_by_a_retry, "worlds", r"S15:", worlds=40,
    ),
    Defect(
        "order-lost", "a task that waits for its retry lets its ordering key go",
        c.retry_lets_its_key_go, "worlds", r"S14:|E1:", worlds=40,
    ),
    Defect(
        "key-unread", "a task takes its key before earlier ones of its window are read",
        c.key_before_the_page_is_read, "postgres", r"S14:", worlds=60,
    ),
    Defect(
        "outage-attempts", "an outage is told by attempts, and not by different tasks",
        c.outage_of_attempts,
        "tests/unit/test_outages.py::test_few_tasks_that_fail_for_ever_are_no_outage", r"assert",
    ),
    Defect(
        "outage-herd", "all tasks of a name start in its outage", c.outage_herd,
        "tests/unit/test_outages.py::test_in_an_outage_one_task_of_the_name_tries_and_others_go_on",
        r"assert",
    ),
    Defect(
        "outages-alone", "a worker takes in nothing of what fails in the others",
        c.outages_alone,
        "tests/unit/test_outages.py::test_two_failures_on_each_of_ten_workers_are_an_outage",
        r"assert",
    ),
    Defect(
        "order-of-the-clock", "a clock that goes back puts off a task of a key, and none after it",
        c.order_of_the_clock,
        "tests/unit/test_core_clock.py::test_a_clock_that_goes_back_changes_no_order", r"assert",
    ),
    Defect(
        "offer-outlives-lease", "an offer may be taken after its owner has lost the shard",
        c.offers_of_former_owners,
        "tests/integration/test_offer_table.py::"
        "test_what_a_former_owner_left_behind_starts_nothing[sqlite-another]", r"assert",
    ),
    Defect(
        "silence-taken-for-no", "a worker that has declared nothing counts as one without handlers",
        c.unknown_workers_handle_nothing,
        "tests/unit/test_offers_declared.py::"
        "test_nobody_handles_only_what_all_are_known_not_to_handle", r"AssertionError: w4 may be",
    ),
    Defect(
        "stuck-repeated", "a handler that runs on after its time-out is repeated beside itself",
        c.stuck_runs_are_settled,
        "tests/unit/test_dispatcher_stuck.py::"
        "test_the_attempt_of_a_stuck_thread_ends_when_the_thread_does", r"assert",
    ),
    Defect(
        "given-back-and-run", "a thread runs what was taken from its chunk and given back",
        c.given_back_and_kept,
        "tests/unit/test_chunks.py::test_a_stop_gives_back_what_has_not_started", r"assert",
    ),
    Defect(
        "overlap-forgotten", "a schedule forgets the task of its last tick",
        c.overlap_forgotten, "worlds", r"S13:", worlds=40,
    ),
    Defect(
        "awake", "a tick that is due keeps the scheduler awake until it is settled",
        c.awake_while_a_tick_waits, "worlds", r"Spinning", worlds=20,
    ),
    Defect(
        "fence-ignored", "a fenced settlement counts as settled, and its shard goes on",
        c.unknown_counts_as_refused, "worlds", r"S[146]:|E1:", worlds=40,
    ),
    Defect(
        "fence-by-key", "the journal's key alone is the fence, without its last row",
        s.fence_without_the_last_row,
        JOURNAL + "test_a_zombie_that_outslept_the_journal_is_fenced[sqlite]",
        r"SettleResult",
    ),
    Defect(
        "fence-by-key-pg", "the same on PostgreSQL",
        s.fence_without_the_last_row_on_postgres,
        JOURNAL + "test_a_zombie_that_outslept_the_journal_is_fenced[postgres]",
        r"SettleResult",
    ),
    Defect(
        "later-version", "the end of a shard of SQLite is known by a version asked after its page",
        s.end_known_by_a_later_version,
        "tests/integration/test_sqlite_thread.py::"
        "test_a_commit_right_after_a_page_is_read_next[as one row]",
        r"ValueError: not enough values",
    ),
    Defect(
        "anybodys-settlement", "whose settlement took the number is not looked at",
        s.whose_id_does_not_matter, JOURNAL + "test_the_journal_has_no_gap_and_no_fork[sqlite]",
        r"fenced",
    ),
    Defect(
        "covers-too-much", "a page covers the rows after its key that one transaction has inserted",
        s.covers_beyond_the_key,
        "tests/unit/test_postgres_cursor.py::test_the_edges_of_what_is_covered", r"assert",
    ),
    Defect(
        "truncate-unlooked", "a leaf of the log is emptied without a look under its lock",
        s.truncate_after_one_look,
        "tests/integration/test_postgres_partitions.py::"
        "test_a_row_that_comes_before_the_lock_is_seen_under_it", r"assert",
    ),
    Defect(
        "results-shuffled", "results of settlements stand in the order of the writes",
        s.results_in_the_order_of_writes,
        JOURNAL + "test_a_repeat_and_a_new_one_travel_together[postgres]", r"assert",
    ),
    Defect(
        "cursor-ahead", "a cursor that moves without rows is ahead of the disk",
        s.cursors_ahead_of_the_disk,
        "tests/integration/test_postgres_tail.py"
        "::test_what_moves_a_cursor_without_rows_is_on_disk_too", r"assert",
    ),
    Defect(
        "cursor-unflushed", "a shard that is passed by never writes its cursor",
        c.a_cursor_that_is_never_due, "tests/unit/test_core_pages.py::"
        "test_a_page_without_rows_moves_the_cursor_of_a_shard_that_is_passed_by", r"assert",
    ),
    Defect(
        "prune-open", "maintenance takes what a cursor covers, open or not",
        s.prune_what_is_open, PRUNE + "test_what_is_settled_goes_and_the_rest_stays[sqlite]",
        r"assert",
    ),
    Defect(
        "prune-one-group", "maintenance does not wait for a group that has read nothing",
        s.prune_for_one_group, PRUNE + "test_a_group_without_a_journal_holds_everything[sqlite]",
        r"assert",
    ),
    Defect(
        "journal-emptied", "retention takes the last row of a journal",
        s.journal_without_its_last_row,
        PRUNE + "test_the_journal_keeps_its_last_row_and_the_young_ones[sqlite]",
        r"assert",
    ),
    Defect(
        "journal-end-compacted", "compaction takes the last row of a journal",
        s.compaction_of_the_last_row, COMPACTION + "test_the_fence_is_as_before[sqlite]",
        r"the last row is not touched", fast=True,
    ),
    Defect(
        "summed-twice", "a row stays whose usage compaction has added to another",
        s.sums_beside_what_they_sum, COMPACTION + "test_sums_are_the_same_in_fewer_rows[sqlite-0]",
        r"assert", fast=True,
    ),
    Defect(
        "term-start-compacted", "compaction takes the first row of a term",
        s.compaction_of_the_first_row,
        COMPACTION_FAULTS + "test_the_first_row_of_a_term_stays[sqlite]",
        r"assert", fast=True,
    ),
    Defect(
        "notice-with-an-answer", "a notice that comes while a statement runs is dropped",
        d.notice_with_an_answer, WAKING + "test_a_notice_that_comes_with_an_answer_is_heard",
        r"TimeoutError",
    ),
    Defect(
        "announced-for-ever", "an announcement stands until its time, however far ahead that is",
        d.announced_for_ever, WAKING + "test_a_time_far_ahead_does_not_stand",
        r"assert Decimal",
    ),
    Defect(
        "tick-twice", "a tick takes effect whatever its schedule expects",
        s.tick_without_comparison,
        JOURNAL + "test_a_tick_that_was_fired_already_inserts_nothing[sqlite]",
        r"assert", fast=True,
    ),
    Defect(
        "killer-unmarked", "nothing is marked after a worker's death",
        c.unmarked, CAUTION + "test_a_killer_is_a_dead_letter_after_four_deaths_and_all_others_"
        "are_done[7]", r"started without its mark", fast=True,
    ),
    Defect(
        "marks-wiped", "a takeover ends the marks of what may still be running",
        s.marks_wiped, "tests/conformance/test_ownership.py::"
        "test_marks_become_deaths_where_an_owner_died_and_nowhere_else[sqlite]",
        r"suspects == marks|Suspect\(",
    ),
    Defect(
        "trial-in-a-crowd", "suspects run beside each other",
        c.trial_in_a_crowd, CAUTION + "test_a_bystander_is_free_after_its_trial",
        r"marked beside a trial|a trial beside others", fast=True,
    ),
    Defect(
        "trust-first-beat", "the first heartbeat after a gap is trusted",
        c.trust_from_the_first_beat,
        "tests/unit/test_lease_keeper.py::"
        "test_who_comes_back_while_a_peer_takes_over_is_not_trusted_in_between",
        r"not True", fast=True,
    ),
    Defect(
        "placement-own", "a worker places shards by its own version, whatever others announce",
        c.placement_by_the_own_version, "worlds", r"E[14]:", worlds=30, fast=True,
    ),
    Defect(
        "ends-untold", "in a large fleet nobody tells that the lease of a neighbour has ended",
        c.ends_untold, "tests/conformance/test_fleet.py::"
        "test_in_a_large_fleet_all_see_an_end_that_a_neighbour_saw[postgres]",
        r"w000", fast=True,
    ),
    Defect(
        "timer-early", "due times are compared in whole milliseconds",
        s.due_by_whole_milliseconds,
        "tests/conformance/test_timers.py::test_due_times_keep_every_microsecond[sqlite]",
        r"too many values to unpack",
    ),
    Defect(
        "command-first", "a command that is read before its task is done at once",
        d.command_before_its_task, COMMANDS + "test_a_command_before_its_task_waits_for_it",
        r"a cancel is settled and its task is not",
    ),
    Defect(
        "cancelled-again", "a task that is cancelled while it runs is repeated",
        d.cancelled_and_repeated,
        COMMANDS + "test_a_running_task_that_was_cancelled_is_not_repeated", r"assert",
    ),
    Defect(
        "receipt-reused", "a receipt is good for a later hand-out of its attempt",
        d.receipt_of_any_hand_out,
        "tests/unit/test_pull.py::test_a_receipt_is_of_one_hand_out_only", r"assert",
    ),
    Defect(
        "receipt-unsealed", "what a receipt says is believed without its seal",
        d.receipt_without_its_seal, API + "test_receipts_that_are_not_good", r"assert 204 == 404",
    ),
    Defect(
        "receipt-foreign", "whoever may consume may answer for any queue",
        d.receipt_of_a_foreign_queue,
        API + "test_a_receipt_of_a_foreign_queue_looks_like_a_forged_one", r"assert 204 == 404",
    ),
    Defect(
        "shared-unfenced", "a shared transaction of handlers commits without the fence",
        s.shared_without_the_fence,
        "tests/integration/test_postgres_shared.py::test_a_former_owner_loses_the_effects_too",
        r"\(1, \['takeover'\]\)|Fate.COMMITTED", fast=True,
    ),
    Defect(
        "effects-unfenced", "a run whose shard was taken over still commits its effects",
        d.claim_without_a_fence,
        "tests/integration/test_effects.py::"
        "test_a_run_whose_shard_has_a_new_owner_has_no_effects[sqlite]",
        r"assert|DID NOT RAISE",
    ),
    Defect(
        "effects-forgotten", "the inbox is swept by age, whatever can still be delivered",
        d.effects_forgotten,
        "tests/integration/test_cleanup.py::"
        "test_an_effect_is_remembered_while_its_task_can_come_again[sqlite]",
        r"assert",
    ),
    Defect(
        "retention-ignored", "maintenance does not ask how long the log is to be kept",
        d.retention_ignored,
        "tests/integration/test_group_retention.py::test_the_log_is_kept_for_replays[sqlite]",
        r"assert",
    ),
    Defect(
        "result-unasked", "a target's result is kept although its task keeps none",
        d.unasked_results,
        "tests/integration/test_http_push.py::test_a_2xx_may_carry_a_result",
        r"assert",
    ),
    Defect(
        "steps-anew", "the steps of a history are numbered from one in each settlement",
        d.steps_begin_anew,
        "tests/integration/test_history.py::"
        "test_steps_are_numbered_and_come_with_their_settlement[sqlite]",
        r"assert",
    ),
    Defect(
        "keys-move-at-once", "after a resize a key's new shard does not wait for its old one",
        z.keys_move_at_once, LANES + "test_a_key_keeps_its_order_across_resizes",
        r"before a\d+",
    ),
    Defect(
        "nothing-left", "an old shard counts as drained when it is read, whatever it has to do",
        z.nothing_left_at_the_closing, LANES + "test_a_key_keeps_its_order_across_resizes",
        r"before a\d+",
    ),
    Defect(
        "closed-at-once", "a resize does not wait for transactions that began before it",
        z.closed_at_once,
        "tests/integration/test_lane_resize_postgres.py::"
        "test_what_began_before_runs_first[read committed-first]",
        r"IndexError|TimeoutError|assert",
    ),
    Defect(
        "insert-by-an-old-lane", "a producer's insert does not depend on the lane's version",
        z.insert_by_an_old_lane,
        "tests/integration/test_lane_resize.py::"
        "test_a_producer_learns_of_the_resize_in_its_own_transaction[sqlite]",
        r"assert",
    ),
    Defect(
        "stale-metrics", "the autoscaler acts on old metrics",
        z.stale_metrics_count, AUTOSCALER + "test_whatever_is_seen_the_promises_hold",
        r"assert",
    ),
    Defect(
        "no-cooldown", "the autoscaler's steps wait for none before them",
        z.no_cooldown, AUTOSCALER + "test_cooldowns_up_and_down", r"assert",
    ),
    Defect(
        "below-the-data", "the autoscaler goes below what the data needs",
        z.below_the_data, AUTOSCALER + "test_storage_is_a_floor_that_is_met_at_once", r"assert",
    ),
    Defect(
        "two-controllers", "an autoscaler whose term is over writes and acts on",
        z.two_controllers,
        "tests/unit/test_autoscaler_loop.py::test_a_controller_that_slept_changes_nothing",
        r"DID NOT RAISE|assert",
    ),
    Defect(
        "trusted-for-ever", "an autoscaler that was paused does not ask its own clock",
        z.trusted_for_ever,
        "tests/unit/test_autoscaler_loop.py::test_trust_in_a_term_ends_by_the_monotonic_clock",
        r"DID NOT RAISE|assert",
    ),
    Defect(
        "company-for-ever", "outcomes that nobody waits for are recorded with others or never",
        c.company_for_ever, COMPANY + "test_a_task_that_simply_ends_waits_for_company",
        r"assert", fast=True,
    ),
    Defect(
        "repeats-counted-twice", "what a death makes others repeat is counted twice",
        c.repeats_counted_twice, "worlds", r"S20:", worlds=20,
    ),
    Defect(
        "callers-wait", "what somebody waits for waits for company like the rest",
        c.callers_wait, COMPANY + "test_an_end_that_somebody_waits_for_is_urgent[a result]",
        r"assert", fast=True,
    ),
    Defect(
        "asleep-at-once", "a tail sleeps without one more look after it has announced that",
        c.asleep_at_once,
        "tests/unit/test_tailer_waking.py::test_it_looks_once_more_after_it_has_announced",
        r"assert", fast=True,
    ),
)  # fmt: skip

_MORE = (disk.DEFECTS, z.DEFECTS)
LISTS = (_ALL, workflows.DEFECTS, transactions.DEFECTS, background.DEFECTS, *_MORE)
DEFECTS: dict[str, Defect] = {each.name: each for some in LISTS for each in some}
