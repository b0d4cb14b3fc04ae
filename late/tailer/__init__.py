"""Owning shards and reading their logs.

    heartbeat (thread) ──view of the fleet, trust──▶ keeper ──acquire, release──▶ store
                                                       │ leases
                                                       ▼
    store ──pages──▶ tailer ──▶ the shards' state machines (`late/scheduler`)

Loops: `heartbeat.py` (says that this worker lives), `keeper.py` (takes and gives up shards),
`tailer.py` (reads what the held shards want to read), `members.py` (who may own shards),
`house.py` (prunes), `ear.py` (hears hints of commits). In the heartbeat's thread as well:
`lookout.py` (notices a worker that does not get on), `health.py` (answers probes). Pure:
`placement.py` (who should own a shard), `membership.py` (who is there, who flaps),
`ownership.py` (what to do next), `watchdog.py` (what a stall is), `pacing.py` (how long to wait),
`hints.py` (what a hint changes of that).

Three independent things keep two workers from settling the same task, weakest first:

1. **placement** names one worker, as long as all see the same fleet;
2. **trust** ends at *heartbeat sent + ttl - margin*, before the database lets anyone take over;
3. the **epoch and the journal's `seq`** fence whoever acts all the same.

Only the third is a proof. The first two save work that would be done twice.
"""
