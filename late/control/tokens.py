"""Tokens of outside callers, which are rows of `late_token`, and the keys of `late_secret`."""

from __future__ import annotations

import secrets

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from late.control.audit import record
from late.control.database import Part
from late.control.sql.rows import now_us
from late.errors import ConfigError
from late.model.access import tokens
from late.model.access.rights import Scope
from late.model.access.tokens import CERTIFICATE, Token
from late.model.deployment_keys import DeploymentKey, accepted
from late.schema.engine import reading, write
from late.schema.tables import secret, token

NO_ROW = "late_secret has no row: restore it from a backup"
_texts = msgspec.json.Decoder(tuple[str, ...])
_scopes = msgspec.json.Decoder(tuple[Scope, ...])


def _public(row: Token) -> dict[str, object]:
    return {"scopes": row.scopes, "queues": row.queues, "expires_at_us": row.expires_at_us}


class TokenControl(Part):
    """Tokens of producers, consumers and operators. See `Control` for what all methods raise."""

    def all(self) -> list[Token]:
        """Read all tokens, including revoked ones, ascending by name."""
        with reading(self._database.engine) as connection:
            rows = connection.execute(select(token).order_by(token.c.name)).all()
        return [
            Token(
                row.name,
                row.digest,
                _scopes.decode(row.scopes),
                _texts.decode(row.queues),
                row.created_at_us,
                row.expires_at_us,
                row.revoked_at_us,
            )
            for row in rows
        ]

    def create(
        self,
        name: str,
        *,
        scopes: list[str],
        queues: list[str],
        lifetime_us: int | None = None,
        certificate: bool = False,
    ) -> tuple[str | None, Token]:
        """Create a token with a new name.

        Args:
            certificate: callers present a client certificate of this name instead of a secret.

        Returns:
            The token's text (None with `certificate`) and its row. The text is not stored, so this
            is the only time that it is known.

        Raises:
            ConfigError: a value is not valid, or the name is taken. A revoked token keeps its name,
                so that a name in old logs means one caller.
        """
        name, chosen, patterns = tokens.checked(name, scopes, queues)
        if lifetime_us is not None and lifetime_us <= 0:
            raise ConfigError("a token must live for longer than nothing")
        text, digest = (None, CERTIFICATE) if certificate else tokens.make(name)

        def add(connection: Connection) -> Token:
            if connection.execute(select(token.c.name).where(token.c.name == name)).first():
                raise ConfigError(
                    f"there is a token {name!r} already, or there was: take another name"
                )
            now = now_us(connection)
            expires_us = None if lifetime_us is None else now + lifetime_us
            row = Token(name, digest, chosen, patterns, now, expires_us)
            connection.execute(
                insert(token).values(
                    name=name,
                    digest=digest,
                    scopes=msgspec.json.encode(chosen).decode(),
                    queues=msgspec.json.encode(patterns).decode(),
                    created_at_us=now,
                    expires_at_us=expires_us,
                )
            )
            record(connection, action="token.create", subject=f"token:{name}", after=_public(row))
            return row

        return text, write(self._database.engine, add)

    def revoke(self, name: str) -> None:
        """Revoke a token. Workers refuse it within seconds; a second call changes nothing.

        Raises:
            ConfigError: there is no such token.
        """

        def end(connection: Connection) -> None:
            row = connection.execute(select(token).where(token.c.name == name)).first()
            if row is None:
                raise ConfigError(f"no token {name[:128]!r}")
            if row.revoked_at_us is None:
                now = now_us(connection)
                connection.execute(
                    update(token).where(token.c.name == name).values(revoked_at_us=now)
                )
                record(connection, action="token.revoke", subject=f"token:{name}")

        write(self._database.engine, end)

    def peer_keys(self) -> list[DeploymentKey]:
        """Return the keys that seal receipts and by which workers know each other.

        Only a worker's login may read them.
        """
        with reading(self._database.engine) as connection:
            rows = connection.execute(
                select(secret.c.name, secret.c.peer_key, secret.c.created_at_us)
            )
            found = [DeploymentKey(int(row[0]), bytes.fromhex(row[1]), row[2] or 0) for row in rows]
        if not found:
            raise ConfigError(NO_ROW)
        return found

    def form_key(self) -> bytes:
        """Return the key of the page's forms. It opens nothing else."""
        with reading(self._database.engine) as connection:
            found = connection.execute(
                select(secret.c.form_key).order_by(secret.c.name).limit(1)
            ).scalar()
        if found is None:
            raise ConfigError(NO_ROW)
        return bytes.fromhex(found)

    def rotate(self, *, at_once: bool = False) -> int:
        """Make a new key of peers and receipts, and return how many keys are kept.

        Args:
            at_once: remove all others now. Receipts that were given out are void then, and
                processes may not reach each other until they have read the new key.
        """

        def add(connection: Connection) -> int:
            now = now_us(connection)
            rows = connection.execute(select(secret.c.name, secret.c.created_at_us)).all()
            keys = [DeploymentKey(int(row.name), b"", row.created_at_us or 0) for row in rows]
            valid = {key.number for key in accepted(keys, now)}
            old = [key for key in keys if at_once or key.number not in valid]
            number = max([key.number for key in keys], default=0) + 1
            form = select(secret.c.form_key).order_by(secret.c.name).limit(1).scalar_subquery()
            connection.execute(
                insert(secret).values(
                    name=str(number),
                    peer_key=secrets.token_hex(32),
                    form_key=form,
                    created_at_us=now,
                )
            )
            names = [str(key.number) for key in old]
            connection.execute(delete(secret).where(secret.c.name.in_(names)))
            record(connection, action="keys.rotate", subject="keys", after={"at_once": at_once})
            return len(keys) + 1 - len(old)

        return write(self._database.engine, add)
