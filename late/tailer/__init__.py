"""Acquire shards and read their logs.

    heartbeat (thread) ──view of the fleet, trust──▶ keeper ──acquire, release──▶ store
                                                       │ leases
                                                       ▼
    store ──pages──▶ tailer ──▶ the shards' state machines (`late/scheduler`)

The loops are `heartbeat.py` (reports that this worker lives), `lease_keeper.py` (acquires and
releases shards), `tailer.py` (reads the logs of its shards) and `discovery.py` (keeps the list of
members).

The other modules are pure: `placement.py` (the worker that should own a shard), `membership.py`
(the workers that live, and changes among them), `ownership.py` (the shards to acquire and release
next), `release_notice.py` (releases that wait until all peers know why), `shard_quarantine.py`
(shards that this worker does not acquire for a while) and `read_hints.py` (the effect of a hint on
the next read).

Three independent rules prevent that two workers settle the same task, the weakest first:

1. **placement** names one worker, as long as all workers see the same fleet;
2. **trust** ends at *heartbeat sent + ttl - margin*, before the database allows a takeover;
3. the **epoch and the journal's `seq`** fence a worker that acts nevertheless.

Only the third is a proof. The first two avoid work that would be done twice.
"""
