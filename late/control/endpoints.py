"""Addresses at which the processes of a deployment reach each other."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select, update

from late.control.database import Part
from late.control.sql.rows import now_us
from late.schema.engine import reading, write
from late.schema.tables import worker


class Endpoint(msgspec.Struct, frozen=True):
    """A live worker that can be asked for its pulled tasks."""

    worker_id: str
    address: str
    """host:port of its gRPC."""


class EndpointControl(Part):
    """Endpoints of live workers. See `Control` for what all methods raise."""

    def all(self) -> list[Endpoint]:
        """Those of all live workers that have one, ascending by worker."""
        with reading(self._database.engine) as connection:
            rows = connection.execute(
                select(worker.c.worker_id, worker.c.endpoint)
                .where(worker.c.expires_at_us > now_us(connection), worker.c.endpoint.is_not(None))
                .order_by(worker.c.worker_id)
            ).all()
        return [Endpoint(*row) for row in rows]

    def announce(self, worker_id: str, address: str) -> None:
        """Store the address at which others reach this worker.

        Its row is there from its first heartbeat on.
        """

        def tell(connection: Connection) -> None:
            connection.execute(
                update(worker).where(worker.c.worker_id == worker_id).values(endpoint=address)
            )

        write(self._database.engine, tell)
