"""Parts of the heartbeat's statement that spare a worker other reads: has any setting changed, and
are attempts offered.

The version of the settings is a digest of all that a worker follows. The rows have versions and
times, but a row can go, and a clock can be set back: only the whole is sure.
"""

from __future__ import annotations

SETTINGS = {
    "late_lane": "name, first_shard, shards, version",
    "late_extent": "lane, version, shards, closings",
    "late_queue": "name, version, knobs",
    "late_target": "name, version, knobs",
    "late_schedule": "name, updated_at_us, paused, next_due_at_us, open_task_id",
    # The settings of groups, late.model.group_settings.
    "late_meta where key >= 'group_set/' and key < 'group_set0'": "key, value",
}
"""Table, with a condition -> the columns that tell of each change, the key first."""
OFFERED = (
    "exists (select 1 from late_offer where owner <> {me}"
    " and (runner is null or (runner = {me} and answer is null)))"
)
"""An attempt of another worker waits for somebody to run it: see `OfferControl.find`."""
