"""The tables on Spanner: the statements of each version of the schema.

`late.schema.spanner.migrate` applies them as one batch. Each may be repeated.
"""

from __future__ import annotations

_RECORD = """
  position INT64 NOT NULL,
  sequence INT64 NOT NULL,
  queue STRING(MAX) NOT NULL,
  name STRING(MAX) NOT NULL,
  payload BYTES(MAX) NOT NULL,
  headers STRING(MAX),
  options STRING(MAX),
  created_at_us INT64 NOT NULL,
  attempts INT64 NOT NULL,
  deaths INT64 NOT NULL,
  errors STRING(MAX)"""

FIRST = (
    # The key begins with the shard: with the commit timestamp first, every insert would go to one
    # server. Within a shard the timestamp is the order of commits, and the id makes equal ones
    # distinct. There is no check on the shard, because the emulator cannot evaluate one together
    # with a pending commit timestamp.
    """CREATE TABLE IF NOT EXISTS late_task (
  shard_id INT64 NOT NULL,
  created_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  task_id STRING(36) NOT NULL,
  queue STRING(MAX) NOT NULL,
  name STRING(MAX) NOT NULL,
  payload BYTES(MAX) NOT NULL,
  headers STRING(MAX),
  options STRING(MAX)
) PRIMARY KEY (shard_id, created_at, task_id)""",
    """CREATE TABLE IF NOT EXISTS late_settlement (
  consumer_group STRING(128) NOT NULL,
  shard_id INT64 NOT NULL,
  seq INT64 NOT NULL,
  settlement_id STRING(64) NOT NULL,
  epoch INT64 NOT NULL,
  owner STRING(MAX) NOT NULL,
  cursor STRING(MAX) NOT NULL,
  open STRING(MAX) NOT NULL,
  usage STRING(MAX),
  settled_at_us INT64 NOT NULL
) PRIMARY KEY (consumer_group, shard_id, seq)""",
    # Spanner finds the first row of a key at once, but the last one only by reading them all, and a
    # journal keeps a week. So this index is descending, for takeovers and pruning, which read the
    # last row.
    """CREATE INDEX IF NOT EXISTS late_settlement_last
ON late_settlement (consumer_group, shard_id, seq DESC)""",
    """CREATE TABLE IF NOT EXISTS late_lease (
  consumer_group STRING(128) NOT NULL,
  shard_id INT64 NOT NULL,
  owner STRING(MAX),
  epoch INT64 NOT NULL
) PRIMARY KEY (consumer_group, shard_id)""",
    """CREATE TABLE IF NOT EXISTS late_worker (
  worker_id STRING(MAX) NOT NULL,
  expires_at_us INT64 NOT NULL,
  started_at_us INT64 NOT NULL,
  address STRING(MAX) NOT NULL,
  consumer_groups STRING(MAX) NOT NULL,
  capacity FLOAT64 NOT NULL,
  version STRING(MAX) NOT NULL
) PRIMARY KEY (worker_id)""",
    f"""CREATE TABLE IF NOT EXISTS late_timer (
  consumer_group STRING(128) NOT NULL,
  shard_id INT64 NOT NULL,
  due_at_us INT64 NOT NULL,
  task_id STRING(36) NOT NULL,
  reason STRING(MAX) NOT NULL,
  held_key STRING(MAX),{_RECORD}
) PRIMARY KEY (consumer_group, shard_id, due_at_us, task_id)""",
    """CREATE NULL_FILTERED INDEX IF NOT EXISTS late_timer_held
ON late_timer (consumer_group, shard_id, held_key, sequence, task_id)""",
    f"""CREATE TABLE IF NOT EXISTS late_dead (
  consumer_group STRING(128) NOT NULL,
  shard_id INT64 NOT NULL,
  dead_at_us INT64 NOT NULL,
  task_id STRING(36) NOT NULL,
  reason STRING(MAX) NOT NULL,{_RECORD}
) PRIMARY KEY (consumer_group, shard_id, dead_at_us, task_id)""",
    """CREATE TABLE IF NOT EXISTS late_schedule (
  name STRING(128) NOT NULL,
  shard_id INT64 NOT NULL,
  rule STRING(MAX) NOT NULL,
  zone STRING(MAX) NOT NULL,
  catch_up STRING(MAX) NOT NULL,
  catch_up_max INT64 NOT NULL,
  overlap STRING(MAX) NOT NULL,
  queue STRING(MAX) NOT NULL,
  task_name STRING(MAX) NOT NULL,
  payload BYTES(MAX) NOT NULL,
  options STRING(MAX),
  anchor_us INT64 NOT NULL,
  next_due_at_us INT64,
  paused INT64 NOT NULL DEFAULT (0),
  open_task_id STRING(36),
  updated_at_us INT64 NOT NULL
) PRIMARY KEY (name)""",
    """CREATE TABLE IF NOT EXISTS late_unique (
  unique_key STRING(MAX) NOT NULL,
  task_id STRING(36) NOT NULL,
  digest STRING(MAX) NOT NULL,
  created_at_us INT64 NOT NULL
) PRIMARY KEY (unique_key)""",
    """CREATE TABLE IF NOT EXISTS late_lane (
  name STRING(128) NOT NULL,
  first_shard INT64 NOT NULL,
  shards INT64 NOT NULL
) PRIMARY KEY (name)""",
    """CREATE TABLE IF NOT EXISTS late_group (
  name STRING(128) NOT NULL,
  created_at_us INT64 NOT NULL
) PRIMARY KEY (name)""",
    """CREATE TABLE IF NOT EXISTS late_meta (
  key STRING(128) NOT NULL,
  value STRING(MAX) NOT NULL
) PRIMARY KEY (key)""",
)

SUSPECTS = (
    "ALTER TABLE late_settlement ADD COLUMN IF NOT EXISTS suspects STRING(MAX)",
    "ALTER TABLE late_lease ADD COLUMN IF NOT EXISTS taken_at_us INT64",
)

_SETTINGS_TABLE = """CREATE TABLE IF NOT EXISTS late_{} (
  name STRING(128) NOT NULL,
  knobs STRING(MAX) NOT NULL,
  version INT64 NOT NULL,
  updated_at_us INT64 NOT NULL
) PRIMARY KEY (name)"""

DELIVERY = (
    "ALTER TABLE late_group ADD COLUMN IF NOT EXISTS queues STRING(MAX)",
    "ALTER TABLE late_group ADD COLUMN IF NOT EXISTS paused INT64 NOT NULL DEFAULT (0)",
    "ALTER TABLE late_group ADD COLUMN IF NOT EXISTS from_us INT64",
    "ALTER TABLE late_group ADD COLUMN IF NOT EXISTS replay_us INT64",
    "ALTER TABLE late_unique ADD COLUMN IF NOT EXISTS expires_at_us INT64",
    "ALTER TABLE late_worker ADD COLUMN IF NOT EXISTS endpoint STRING(MAX)",
    _SETTINGS_TABLE.format("queue"),
    _SETTINGS_TABLE.format("target"),
    # Its key rises with time. That is harmless, as operators write only a few rows a day.
    """CREATE TABLE IF NOT EXISTS late_audit (
  audit_id STRING(36) NOT NULL,
  at_us INT64 NOT NULL,
  actor STRING(MAX) NOT NULL,
  action STRING(MAX) NOT NULL,
  subject STRING(MAX) NOT NULL,
  before STRING(MAX),
  after STRING(MAX)
) PRIMARY KEY (audit_id)""",
    """CREATE TABLE IF NOT EXISTS late_inbox (
  consumer_group STRING(128) NOT NULL,
  task_id STRING(36) NOT NULL,
  done_at_us INT64 NOT NULL
) PRIMARY KEY (consumer_group, task_id)""",
    """CREATE TABLE IF NOT EXISTS late_result (
  consumer_group STRING(128) NOT NULL,
  task_id STRING(36) NOT NULL,
  value BYTES(MAX) NOT NULL,
  expires_at_us INT64 NOT NULL
) PRIMARY KEY (consumer_group, task_id)""",
    """CREATE TABLE IF NOT EXISTS late_history (
  consumer_group STRING(128) NOT NULL,
  task_id STRING(36) NOT NULL,
  number INT64 NOT NULL,
  at_us INT64 NOT NULL,
  event STRING(MAX) NOT NULL,
  worker STRING(MAX) NOT NULL,
  detail STRING(MAX)
) PRIMARY KEY (consumer_group, task_id, number)""",
    """CREATE TABLE IF NOT EXISTS late_token (
  name STRING(128) NOT NULL,
  digest STRING(MAX) NOT NULL,
  scopes STRING(MAX) NOT NULL,
  queues STRING(MAX) NOT NULL,
  created_at_us INT64 NOT NULL,
  expires_at_us INT64,
  revoked_at_us INT64
) PRIMARY KEY (name)""",
    """CREATE INDEX IF NOT EXISTS late_timer_task
ON late_timer (consumer_group, shard_id, task_id)""",
    """CREATE INDEX IF NOT EXISTS late_dead_task
ON late_dead (consumer_group, shard_id, task_id)""",
)

AUTOSCALER = (
    """CREATE TABLE IF NOT EXISTS late_controller (
  name STRING(128) NOT NULL,
  owner STRING(MAX),
  epoch INT64 NOT NULL,
  expires_at_us INT64 NOT NULL,
  seq INT64 NOT NULL,
  up_us INT64,
  down_us INT64,
  looked_at_us INT64 NOT NULL,
  last STRING(MAX)
) PRIMARY KEY (name)""",
    """CREATE TABLE IF NOT EXISTS late_decision (
  controller STRING(128) NOT NULL,
  seq INT64 NOT NULL,
  epoch INT64 NOT NULL,
  owner STRING(MAX) NOT NULL,
  at_us INT64 NOT NULL,
  rule STRING(MAX) NOT NULL,
  from_size INT64 NOT NULL,
  to_size INT64 NOT NULL,
  wanted INT64 NOT NULL,
  inputs STRING(MAX) NOT NULL,
  why STRING(MAX) NOT NULL,
  result STRING(MAX) NOT NULL
) PRIMARY KEY (controller, seq DESC)""",
)

HELD = (
    "ALTER TABLE late_queue ADD COLUMN IF NOT EXISTS held INT64",
    "ALTER TABLE late_queue ADD COLUMN IF NOT EXISTS held_at_us INT64",
)

LANES = (
    "ALTER TABLE late_lane ADD COLUMN IF NOT EXISTS version INT64 NOT NULL DEFAULT (0)",
    """CREATE TABLE IF NOT EXISTS late_extent (
  lane STRING(128) NOT NULL,
  version INT64 NOT NULL,
  shards INT64 NOT NULL,
  closed_at_us INT64 NOT NULL,
  waits_for STRING(MAX),
  closings STRING(MAX)
) PRIMARY KEY (lane, version)""",
)

OFFERS = (
    """CREATE TABLE IF NOT EXISTS late_offer (
  consumer_group STRING(128) NOT NULL,
  shard_id INT64 NOT NULL,
  task_id STRING(36) NOT NULL,
  epoch INT64 NOT NULL,
  owner STRING(MAX) NOT NULL,
  attempt STRING(MAX) NOT NULL,
  offered_at_us INT64 NOT NULL,
  refused_by STRING(MAX) NOT NULL,
  runner STRING(MAX),
  answer STRING(MAX)
) PRIMARY KEY (consumer_group, shard_id, task_id, epoch)""",
)

SECRET = """CREATE TABLE IF NOT EXISTS late_secret (
  name STRING(128) NOT NULL,
  peer_key STRING(MAX) NOT NULL,
  form_key STRING(MAX) NOT NULL
) PRIMARY KEY (name)"""  # It has no secret. # nosec B105

SUBJECT_KEYS = """CREATE TABLE IF NOT EXISTS late_subject_key (
  subject STRING(64) NOT NULL,
  wrapped STRING(MAX),
  created_at_us INT64 NOT NULL,
  dropped_at_us INT64
) PRIMARY KEY (subject)"""

WORKFLOWS = (
    """CREATE TABLE IF NOT EXISTS late_stage (
  workflow_id STRING(36) NOT NULL,
  stage INT64 NOT NULL,
  task_id STRING(36) NOT NULL,
  state STRING(16) NOT NULL,
  missing INT64 NOT NULL,
  after STRING(MAX) NOT NULL,
  next STRING(MAX) NOT NULL,
  collects INT64 NOT NULL,
  on_failure INT64,
  mark STRING(MAX),
  shard_id INT64 NOT NULL,
  queue STRING(MAX) NOT NULL,
  name STRING(MAX) NOT NULL,
  payload BYTES(MAX) NOT NULL,
  headers STRING(MAX),
  options STRING(MAX),
  result BYTES(MAX),
  ended_at_us INT64
) PRIMARY KEY (workflow_id, stage)""",
    "CREATE UNIQUE INDEX IF NOT EXISTS late_stage_task ON late_stage (task_id)",
)

WORKER_REPORTS = """CREATE TABLE IF NOT EXISTS late_worker_report (
  worker_id STRING(MAX) NOT NULL,
  at_us INT64 NOT NULL,
  report STRING(MAX) NOT NULL
) PRIMARY KEY (worker_id)"""

FULL = """CREATE TABLE IF NOT EXISTS late_full (
  name STRING(MAX) NOT NULL,
  held INT64 NOT NULL,
  bound INT64 NOT NULL,
  until_us INT64 NOT NULL
) PRIMARY KEY (name)"""

STATEMENTS = {
    "0001": FIRST,
    "0002": SUSPECTS,
    "0003": DELIVERY,
    "0004": AUTOSCALER,
    "0005": HELD,
    "0006": LANES,
    "0007": (),
    "0008": OFFERS,
    "0009": ("ALTER TABLE late_worker ADD COLUMN IF NOT EXISTS ends STRING(MAX)",),
    "0010": ("ALTER TABLE late_worker ADD COLUMN IF NOT EXISTS handlers STRING(MAX)",),
    "0011": ("ALTER TABLE late_settlement ADD COLUMN IF NOT EXISTS first_seq INT64",),
    "0012": (),
    "0013": (SECRET,),
    "0014": ("ALTER TABLE late_secret ADD COLUMN IF NOT EXISTS created_at_us INT64",),
    "0015": (SUBJECT_KEYS,),
    "0016": WORKFLOWS,
    "0017": (WORKER_REPORTS,),
    "0018": (FULL,),
    "0019": (),
}
"""The statements of each version, in order. They never change: a new schema is a new version."""
