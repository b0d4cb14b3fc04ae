"""Owning shards and reading their logs.

    heartbeat (thread) ──view of the fleet, trust──▶ keeper ──acquire, release──▶ store
                                                       │ leases
                                                       ▼
    store ──pages──▶ tailer ──▶ the shards' state machines (`late/scheduler`)

Loops: `heartbeat.py` (says that this worker lives), `lease_keeper.py` (takes and gives up shards),
`tailer.py` (reads what the held shards want to read), `discovery.py` (keeps the list of members).

Pure: `placement.py` (the worker that should own a shard), `membership.py` (the workers that live,
and those that come and go), `ownership.py` (the next steps), `shard_quarantine.py` (shards that are
left alone for a while), `read_hints.py` (what a hint changes).

Three independent things keep two workers from settling the same task, weakest first:

1. **placement** names one worker, as long as all see the same fleet;
2. **trust** ends at *heartbeat sent + ttl - margin*, before the database lets anyone take over;
3. the **epoch and the journal's `seq`** fence whoever acts all the same.

Only the third is a proof. The first two save work that would be done twice.
"""
