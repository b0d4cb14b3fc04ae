"""Addresses at which the processes of a deployment reach each other."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select, update

from late.control.database import Part
from late.control.sql.rows import now_us
from late.schema.engine import reading, write
from late.schema.tables import worker


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a live worker that serves pulled tasks."""

    worker_id: str
    address: str
    """The `host:port` of its gRPC server."""


class EndpointControl(Part):
    """Endpoints of live workers. See `Control` for what all methods raise."""

    def all(self) -> list[Endpoint]:
        """Return the endpoints of live workers, ascending by worker; not every worker has one."""
        with reading(self._database.engine) as connection:
            rows = connection.execute(
                select(worker.c.worker_id, worker.c.endpoint)
                .where(worker.c.expires_at_us > now_us(connection), worker.c.endpoint.is_not(None))
                .order_by(worker.c.worker_id)
            ).all()
        return [Endpoint(*row) for row in rows]

    def announce(self, worker_id: str, address: str) -> None:
        """Store the address at which other processes reach this worker.

        The worker's row exists from its first heartbeat on; without it nothing is stored.
        """

        def tell(connection: Connection) -> None:
            connection.execute(
                update(worker).where(worker.c.worker_id == worker_id).values(endpoint=address)
            )

        write(self._database.engine, tell)
