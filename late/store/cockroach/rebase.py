"""`late rebase` on CockroachDB: make a restored database one that workers may run on."""

from __future__ import annotations

import uuid

from late.store.cockroach import statements as sql
from late.store.cockroach.connection import repeated
from late.store.postgres.connection import Connection, rows_of


async def rebase(connection: Connection, cluster: str | None) -> None:
    """Adopt the database for `cluster`: raise every epoch, free every shard, forget the workers.

    Cursors stay: in a restored copy every row has a timestamp above them, so that nothing can be
    lost, and rows that another group still needed run again for the groups that had settled them.
    """

    async def work() -> None:
        async with connection.transaction():
            for group, shard_id in await rows_of(connection, sql.LEASES):
                key = (group, shard_id)
                ((_, epoch, *_),) = await rows_of(connection, sql.LEASE, key)
                last = await rows_of(connection, sql.LAST, key)
                seq, last_epoch, cursor, open_text, _ = last[0] if last else (0, 0, "", "[]", None)
                epoch = max(epoch, last_epoch) + 1
                await connection.execute(sql.GRANT, (*key, None, epoch, None))
                made = (uuid.uuid4().hex, epoch, "rebase", cursor, open_text, None)
                await connection.execute(sql.TAKE_OVER, (*key, seq + 1, *made))
            await connection.execute("delete from late_worker")
            await connection.execute("delete from late_offer")
            if cluster is not None:
                await connection.execute(sql.CLAIM_IDENTITY, (cluster,))

    await repeated(work)
