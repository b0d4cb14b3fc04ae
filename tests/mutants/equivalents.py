"""Mutants that change nothing that anyone could see, each with the reason."""

from __future__ import annotations

EQUIVALENTS: dict[tuple[str, str, str], str] = {
    (
        "late/scheduler/core/timers.py",
        "self._asked += 1",
        "self._asked += 2",
    ): "a number that only has to rise",
    (
        "late/scheduler/core/timers.py",
        "elif room > self._timers_max // 2 and now_us >= self._loaded[0] - self._horizon_us // 2:",
        "elif room >= self._timers_max // 2 and now_us >= self._loaded[0] - self._horizon_us // 2:",
    ): "one timer more or less decides when the next are read; a read finds the same ones",
    (
        "late/store/postgres/statements.py",
        "where l.shard_id >= gap.lo and l.shard_id < gap.hi), gap.hi",
        "where l.shard_id >= gap.lo or l.shard_id < gap.hi), gap.hi",
    ): "the same shards, after more steps: the lanes' own are found once more",
    (
        "late/store/spanner/journal.py",
        "if ended := [(key, -us) for key, _, us in held if us is not None and us < 0]:",
        "if ended := [(key, -us) for key, _, us in held if us is not None and us < 1]:",
    ): "a time since 1970 is never 0",
    (
        "late/store/sqlite/page_decoder.py",
        "if column and column.count(column[0]) == len(column):",
        "if column and column.count(column[ -1]) == len(column):",
    ): "all are equal to the first where all are equal to the last",
    (
        "late/store/spanner/prune.py",
        "return 0, 0, False",
        "return 0, 1, False",
    ): "whoever has nothing to delete does not look at the last number",
    (
        "late/store/sqlite/prune.py",
        "if floor > common",
        "if floor >= common",
    ): "one more range in which nothing is",
    (
        "late/store/spanner/membership.py",
        'return bool(list(snapshot.read(table, ("task_id",), KeySet(ranges=ranges), limit=1)))',
        'return bool(list(snapshot.read(table, ("task_id",), KeySet(ranges=ranges), limit= 2)))',
    ): "it asks whether there is a row",
    (
        "late/store/spanner/membership.py",
        'rows = list(snapshot.read(LOG, ("shard_id",), KeySet(ranges=ranges), limit=1))',
        'rows = list(snapshot.read(LOG, ("shard_id",), KeySet(ranges=ranges), limit= 2))',
    ): "it takes the first row",
    (
        "late/store/postgres/partitions.py",
        "DROP_AT = 8",
        "DROP_AT = 9",
    ): "tuning: how many empty leaves may stay",
    (
        "late/store/postgres/partitions.py",
        "WIDTH_MAX = 1 << 24",
        "WIDTH_MAX = 2 << 24",
    ): "tuning: the widest leaf",
    (
        "late/store/postgres/partitions.py",
        "rate = grown / elapsed_s if elapsed_s > 1 else 0.0",
        "rate = grown / elapsed_s if elapsed_s > 2 else 0.0",
    ): "tuning: the shortest time from which a rate is measured",
    (
        "late/store/postgres/tail.py",
        "deadline = time.monotonic() + CALL_TIMEOUT_S / 2",
        "deadline = time.monotonic() + CALL_TIMEOUT_S * 2",
    ): "the time-out of the whole call comes first, with the same error",
    (
        "late/store/postgres/statements.py",
        "|| pg_logical_emit_message(true, 'late', '')) is null end",
        "|| pg_logical_emit_message(true, 'late', '')) is not null end",
    ): "the commit of this very statement has flushed by then; the next look only checks it",
    (
        "late/store/sqlite/statements.py",
        '" and settled_at_us >= :horizon), (select max(seq) from late_settlement"',
        '" and settled_at_us > :horizon), (select max(seq) from late_settlement"',
    ): "a row that is as old as the limit to the millisecond goes a millisecond sooner",
    (
        "late/store/sqlite/prune.py",
        "with transaction(connection, durable=False):",
        "with transaction(connection, durable=True):",
    ): "it waits for the disk, where it need not",
    (
        "late/scheduler/outcome_rules.py",
        "if len(errors) > ERRORS_KEPT:",
        "if len(errors) >= ERRORS_KEPT:",
    ): "the first and the last half of just as many are all of them",
    (
        "late/tailer/tailer.py",
        "self._due_s = 0.0",
        "self._due_s = 1.0",
    ): "a second of a clock that runs since the machine started: it has passed",
    (
        "late/store/postgres/tail.py",
        "self._advanced_at = 0.0",
        "self._advanced_at = -1.0",
    ): "a second of a clock that runs since the machine started",
    (
        "late/tailer/tailer.py",
        "return 0",
        "return -1",
    ): "the tailer has stopped: nobody looks at the number",
    (
        "late/tailer/lease_keeper.py",
        "backoff = Backoff(self._rng, cap_s=1.0)",
        "backoff = Backoff(self._rng, cap_s= 2.0)",
    ): "tuning: the longest pause between two tries",
    (
        "late/store/spanner/membership.py",
        'return bool(list(snapshot.read(table, ("task_id",), KeySet(ranges=ranges), limit=1)))',
        'return bool(list(snapshot.read(table, ("task_id",), KeySet(ranges=ranges), limit= 0)))',
    ): "0 is no limit",
    (
        "late/store/spanner/membership.py",
        "shards.add(rows[0][0])",
        "shards.add(rows[ -1][0])",
    ): "there is one row",
    (
        "late/scheduler/core/crash_suspects.py",
        "return entry.index <= ENTRIES_MAX",
        "return entry.index < ENTRIES_MAX",
    ): "tuning: one record more or less of 3,000",
    (
        "late/scheduler/core/timers.py",
        "if len(self.parked) <= self._timers_max:",
        "if len(self.parked) < self._timers_max:",
    ): "tuning: one timer more or less in memory",
    (
        "late/scheduler/core/ordering_keys.py",
        "break",
        "continue",
    ): "nothing more is asked for; it goes over the others for nothing",
    (
        "late/scheduler/core/starts.py",
        "for entry, again_us, reason in core.ready_queues.surplus(most // 2):",
        "for entry, again_us, reason in core.ready_queues.surplus(most // 1):",
    ): "tuning: how many stay in memory",
    (
        "late/store/spanner/journal.py",
        "if ended := [(key, -us) for key, _, us in held if us is not None and us < 0]:",
        "if ended := [(key, -us) for key, _, us in held if us is not None and us < -1]:",
    ): "a time since 1970 is never 1",
    (
        "late/store/postgres/cursor.py",
        "",
        "def parse_snapshot(text: str) -> Snapshot:",
    ): "it is a cache",
    (
        "late/store/postgres/partitions.py",
        "ahead = [leaf for leaf in leaves if leaf.low > present]",
        "ahead = [leaf for leaf in leaves if leaf.low >= present]",
    ): "tuning: present is an estimate with room to spare",
    (
        "late/scheduler/core/ordering_keys.py",
        "self.below = 0  # its `committed_below`",
        "self.below = 1  # its `committed_below`",
    ): "it is set as the first task gets in line; nobody asks before",
    (
        "late/scheduler/core/crash_suspects.py",
        "entry.deaths = max(entry.deaths, self.deaths.get(entry.record.task_id, 0))",
        "entry.deaths = max(entry.deaths, self.deaths.get(entry.record.task_id, -1))",
    ): "a task has 0 deaths at least",
    (
        "late/store/postgres/partitions.py",
        "if not new and len(over) < DROP_AT:",
        "if not new and len(over) <= DROP_AT:",
    ): "tuning: how many empty leaves may stay",
    (
        "late/store/postgres/prune.py",
        "if floor > 0:",
        "if floor >= 0:",
    ): "no transaction id is below 0: a statement more that deletes nothing",
    (
        "late/store/postgres/cursor.py",
        "XID_MAX = 2**64 - 1",
        "XID_MAX = 3**64 - 1",
    ): "no transaction id comes near it, and only the lowest of three bounds is sent",
    (
        "late/tailer/tailer.py",
        "self._quiet_since_s = 0.0",
        "self._quiet_since_s = 1.0",
    ): "it is set again as the loop begins",
    (
        "late/tailer/read_hints.py",
        "self._paid = False",
        "self._paid = True",
    ): "each look sets it as it begins, and it is asked at its end",
    (
        "late/tailer/read_hints.py",
        "self._charged = False",
        "self._charged = True",
    ): "each look sets it as it begins, and it is asked at its end",
    (
        "late/scheduler/core/state.py",
        "self.latest_us = 0",
        "self.latest_us = 1",
    ): "a time since 1970 is never 1",
    (
        "late/tailer/membership.py",
        "name, end_us = worker.worker_id, membership.expires_at_us.get(worker.worker_id, 0)",
        "name, end_us = worker.worker_id, membership.expires_at_us.get(worker.worker_id, -1)",
    ): "both are over since 1970",
    (
        "late/store/spanner/prune.py",
        'before = list(snapshot.execute_sql(_PAST.replace("{}", str(int(retention[0][0])))))',
        'before = list(snapshot.execute_sql(_PAST.replace("{}", str(int(retention[0][ -1])))))',
    ): "the row has one column",
    (
        "late/store/postgres/partitions.py",
        "elapsed_s, grown = 0.0, 0",
        "elapsed_s, grown = 0.0, -1",
    ): "what has grown counts only where time has passed",
    (
        "late/store/sqlite/membership.py",
        "return hashlib.md5(repr(rows).encode(), usedforsecurity=False).hexdigest()",
        "return hashlib.md5(repr(rows).encode(), usedforsecurity=True).hexdigest()",
    ): "the same digest, but where a policy forbids it for security",
    (
        "late/store/common/fleet_view.py",
        "self._seen = Membership(0, (), (), ())",
        "self._seen = Membership( -1, (), (), ())",
    ): "its time is set as it is handed out",
    (
        "late/scheduler/pools.py",
        "",
        "def load(self) -> int: ...",
    ): "a protocol: its bodies run nowhere",
    (
        "late/store/postgres/wake_ups.py",
        "LEAVE_S = 1.0",
        "LEAVE_S = 2.0",
    ): "tuning: how long a good-bye may take",
    (
        "late/scheduler/core/window.py",
        "break",
        "continue",
    ): "the window is in the order of its indices: behind it nothing is covered",
    (
        "late/scheduler/read_ahead.py",
        "WINDOW_S = 0.05",
        "WINDOW_S = 1.05",
    ): "tuning: of how long a time the rate is",
    (
        "late/scheduler/core/unclaimed.py",
        "self._turn = 0",
        "self._turn = -1",
    ): "which pool is first in turn",
    (
        "late/tailer/announcement.py",
        "SLEEP_AFTER = 4",
        "SLEEP_AFTER = 3",
    ): "tuning: after how many empty looks a tail may sleep",
    (
        "late/tailer/placement.py",
        "HIGHEST_SCORE = 1",
        "HIGHEST_SCORE = 0",
    ): "any number below that of the bounded loads",
    (
        "late/store/sqlite/wake_ups.py",
        "self._looked_s = 0.0",
        "self._looked_s = -1.0",
    ): "a second of a clock that runs since the machine started",
    (
        "late/scheduler/core/commands.py",
        "class _Waiting(msgspec.Struct, eq=False):",
        "class _Waiting(msgspec.Struct, eq=True):",
    ): "no two of them are compared",
    (
        "late/store/postgres/cursor.py",
        "XID_MAX = 2**64 - 1",
        "XID_MAX = 2**64 - 0",
    ): "no transaction id comes near it, and only the lowest of three bounds is sent",
    (
        "late/store/postgres/membership.py",
        "self._end_us = 0",
        "self._end_us = 1",
    ): "it is set with the first answer, and nothing is compared with it before",
    (
        "late/tailer/announcement.py",
        "HOLD_S = 0.25",
        "HOLD_S = 1.25",
    ): "tuning: how soon after a busy time a tail may sleep",
    (
        "late/tailer/placement.py",
        "",
        "def _said(version: str) -> _Said:",
    ): "it is a cache",
    (
        "late/store/common/fleet_view.py",
        "self._ends_us[me] = own_end_us or 0",
        "self._ends_us[me] = own_end_us or 1",
    ): "both are over since 1970",
    (
        "late/tailer/membership.py",
        "name, end_us = worker.worker_id, membership.expires_at_us.get(worker.worker_id, 0)",
        "name, end_us = worker.worker_id, membership.expires_at_us.get(worker.worker_id, 1)",
    ): "both are over since 1970",
    (
        "late/store/sqlite/wake_ups.py",
        "self._pause = 0",
        "self._pause = 1",
    ): "a write or an announcement sets it before the first look",
    (
        "late/store/sqlite/wake_ups.py",
        "self._look_at(max(self._loop.time() + PAUSES_S[0], self._looked_s + SPACING_S))",
        "self._look_at(max(self._loop.time() - PAUSES_S[0], self._looked_s + SPACING_S))",
    ): "tuning: the first look after a write comes a millisecond sooner",
    (
        "late/store/spanner/connection.py",
        "start(1.0)",
        "start( 2.0)",
    ): "tuning: how long a good-bye may take",
    (
        "late/store/spanner/grpc_channels.py",
        "KEEPALIVE_TIMEOUT_S = 2.0",
        "KEEPALIVE_TIMEOUT_S = 1.0",
    ): "tuning: how soon a dead peer is given up",
    (
        "late/scheduler/schedules.py",
        "if sum(len(tick.tasks) for tick in ticks) >= TASKS_MAX:\nbreak",
        "continue",
    ): "the sum only grows: it goes over the others for nothing",
    (
        "late/scheduler/schedules.py",
        "del missed[: MISSED_MAX // 2]",
        "del missed[: MISSED_MAX // 3]",
    ): "tuning: how many of the oldest are left out at once",
    (
        "late/scheduler/settings.py",
        "NEVER_US = 2**63 - 1",
        "NEVER_US = 3**63 - 1",
    ): "later than every time: it is compared and goes into no statement",
    (
        "late/store/postgres/statements.py",
        "CHANGE_ROWS = 8",
        "CHANGE_ROWS = 7",
    ): "tuning: in how many rows changes are counted, so that workers seldom wait for each other",
    (
        "late/store/sqlite/statements.py",
        '" having max(number) > 0"',
        '" having min(number) > 0"',
    ): "the steps of a task are numbered from 1",
    (
        "late/store/postgres/prune.py",
        "low = 0 if partition.is_default else partition.low",
        "low = -1 if partition.is_default else partition.low",
    ): "no transaction id is below 0",
    (
        "late/scheduler/core/timers.py",
        "self._pushed += 1",
        "self._pushed += 2",
    ): "a number that only has to rise",
    (
        "late/scheduler/read_ahead.py",
        "self.measured_at = 0.0",
        "self.measured_at = 1.0",
    ): "a second of a clock that runs since the machine started",
    (
        "late/store/postgres/wake_ups.py",
        "CALL_S = 5.0",
        "CALL_S = 6.0",
    ): "tuning: how long a call of the listener may take",
    (
        "late/tailer/discovery.py",
        "DEADLINE_S = 3.0",
        "DEADLINE_S = 4.0",
    ): "tuning: how long an answer may take before the last good one is used on",
    (
        "late/scheduler/usage.py",
        "return durations if min(durations, default=0) >= 0 else [max(0, us) for us in durations]",
        "return durations if min(durations, default= -1) >= 0"
        " else [max(0, us) for us in durations]",
    ): "a list of no durations is the same either way",
    (
        "late/tailer/heartbeat.py",
        "FAREWELL_S = 2.0",
        "FAREWELL_S = 1.0",
    ): "tuning: how long a good-bye may take",
    (
        "late/store/common/fleet_view.py",
        "self._ends_us[me] = own_end_us or 0",
        "self._ends_us[me] = own_end_us or -1",
    ): "both are over since 1970",
    (
        "late/store/sqlite/wake_ups.py",
        "self._pause = 1",
        "self._pause = 0",
    ): "tuning: one look more after a write",
    (
        "late/scheduler/core/timers.py",
        "if self._gone.get(key, 0) < number and row.record.task_id not in self.parked",
        "if self._gone.get(key, -1) < number and row.record.task_id not in self.parked",
    ): "loads are numbered from 1",
    (
        "late/tailer/ownership.py",
        "",
        "def _owners(",
    ): "it is a cache",
    (
        "late/tailer/announcement.py",
        "HOLD_MAX_S = 4.0",
        "HOLD_MAX_S = 3.0",
    ): "tuning: the longest time without an announcement after those that did not last",
}
"""(module, the line, the changed line) -> the reason. If a module has the line more than once, and
the reason is of one place only, the line above comes first, with a line break between."""
