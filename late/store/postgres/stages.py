"""The stages of workflows on PostgreSQL: `late.model.workflow.changes` as statements.

All of a workflow is locked by its first row, in a statement of its own. The next statement has a
snapshot of after the wait, so that it sees the results of those who were faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from late.model.task import CONTROL_QUEUE, TaskId
from late.model.workflow import CANCEL, RESULTS_BYTES_MAX, StageEnd
from late.store.postgres.statements import NOW

# In one order everywhere: two settlements that end stages of the same workflows do not deadlock.
_LOCK = """
select 1 from late_stage where stage = 0 and workflow_id in (
  select s.workflow_id from late_stage s where s.task_id = any(%s::uuid[]))
 order by workflow_id for update
"""
# The id of a command differs from that of its task in the last 48 bits, which are random. So it has
# the shard of its task, as every id.
_CANCEL = f"""
with changed as (
  update late_stage s set
     state = case s.state when 'waiting' then 'cancelled' else 'stopping' end,
     ended_at_us = case s.state when 'waiting' then {NOW} end
   where s.workflow_id in (select w.workflow_id from late_stage w where w.task_id = any(%s::uuid[]))
     and (s.state = 'waiting' or (s.state = 'started' and s.task_id <> all(%s::uuid[])))
  returning s.shard_id, s.task_id, s.state)
insert into late_task (shard_id, task_id, queue, name, payload)
select c.shard_id,
       overlay(c.task_id::text placing right(gen_random_uuid()::text, 12) from 25)::uuid,
       '{CONTROL_QUEUE}', 'late.cancel', convert_to('{{"task_id":"' || c.task_id || '"}}', 'UTF8')
  from changed c where c.state = 'stopping'
"""
_RESULTS = """(
         select case when s.collects = 1
                     then '[' || string_agg(r.value, ',' order by r.place) || ']'
                     else max(r.value) end
           from (select a.place, coalesce(
                          convert_from(coalesce(e.result, p.result), 'UTF8'), 'null') as value
                   from json_array_elements_text(s.after::json) with ordinality a (stage, place)
                   join late_stage p on p.workflow_id = s.workflow_id and p.stage = a.stage::int
                   left join ended e on e.workflow_id = p.workflow_id and e.stage = p.stage) r)"""
_END = f"""
with ended as (
  update late_stage s set state = u.state, result = u.result, ended_at_us = {NOW}
    from unnest(%s::uuid[], %s::text[], %s::bytea[]) u (task_id, state, result)
   where s.task_id = u.task_id and s.state in ('started', 'stopping', 'dead') and s.state <> u.state
  returning s.*),
following as (
  select e.workflow_id, n.stage::int as stage, count(*)::int as ends, null as failed
    from ended e cross join lateral json_array_elements_text(e.next::json) n (stage)
   where e.state = 'done' group by 1, 2
  union all
  select e.workflow_id, e.on_failure, 1, to_json(min(e.task_id::text))::text
    from ended e where e.state not in ('done', 'cancelled') and e.on_failure is not null
   group by 1, 2),
moved as (
  update late_stage s set missing = s.missing - f.ends,
     state = case when s.missing <= f.ends then 'started' else s.state end
    from following f
   where s.workflow_id = f.workflow_id and s.stage = f.stage and s.state = 'waiting'
  returning s.*, case when s.missing <= 0 and s.mark is not null then
     coalesce(f.failed, {_RESULTS}) end as value)
insert into late_task (shard_id, task_id, queue, name, payload, headers, options)
select m.shard_id, m.task_id, m.queue, m.name,
       case when m.mark is null then m.payload else substr(convert_to(replace(
         convert_from(m.payload, 'UTF8'), m.mark, coalesce(m.value, 'null')), 'UTF8'),
         1, {RESULTS_BYTES_MAX + 1}) end,
       m.headers, m.options
  from moved m where m.missing <= 0
"""
# A dead letter that went back is in the timer table: its stage may end once more.
REVIVED = """
update late_stage s set state = 'started', ended_at_us = null
  from unnest(%s::text[], %s::smallint[], %s::uuid[], %s::bigint[]) u (g, shard, id, due)
  join late_timer t on t.consumer_group = u.g and t.shard_id = u.shard and t.due_at_us = u.due
                   and t.task_id = u.id
 where s.task_id = u.id and s.state = 'dead'
"""
# A workflow may go if none of its tasks can end any more. Dead letters may be redriven.
PRUNE = f"""
delete from late_stage where workflow_id in (
  select s.workflow_id from late_stage s where s.stage = 0 and s.workflow_id < (
     lpad(to_hex(({NOW} - %(keep_us)s::bigint) / 1000), 12, '0') || repeat('0', 20))::uuid
     and not exists (
       select 1 from late_stage o where o.workflow_id = s.workflow_id and (
         o.state in ('started', 'stopping') or (o.state = 'dead' and exists (
           select 1 from late_dead d where d.consumer_group = 'default'
              and d.shard_id = o.shard_id and d.task_id = o.task_id))))
   order by s.workflow_id limit %(batch)s)
"""


def statements_of(ends: Sequence[StageEnd]) -> Iterator[tuple[str, Any]]:
    """Yield the statements for the ends of tasks that are stages; none without ends."""
    if not ends:
        return
    yield _LOCK, [_ids(ends)]
    stopped = [end for end in ends if end.state in ("cancelled", CANCEL)]
    if stopped:
        yield _CANCEL, [_ids(stopped), [end.task_id for end in stopped if end.state != CANCEL]]
    ended = [end for end in ends if end.state != CANCEL]
    if ended:
        yield _END, [_ids(ended), [end.state for end in ended], [end.result for end in ended]]


def _ids(ends: Sequence[StageEnd]) -> list[TaskId]:
    return [end.task_id for end in ends]
