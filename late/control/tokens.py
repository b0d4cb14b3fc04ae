"""Tokens of callers from outside: rows of `late_token`, and the key that seals receipts."""

from __future__ import annotations

import secrets

import msgspec
from sqlalchemy import Connection, Engine, insert, select, update

from late.control.audit import record
from late.control.database import Part
from late.control.sql.rows import now_us
from late.errors import ConfigError, StoreError
from late.model import tokens
from late.model.tokens import CERTIFICATE, Token
from late.schema.engine import reading, write
from late.schema.tables import meta, token

RECEIPT_KEY = "receipt_key"
_texts = msgspec.json.Decoder(tuple[str, ...])
_scopes = msgspec.json.Decoder(tuple[tokens.Scope, ...])


def listed(engine: Engine) -> list[Token]:
    """Return all tokens, also revoked ones, ascending by name."""
    with reading(engine) as connection:
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
    engine: Engine,
    name: str,
    *,
    scopes: list[str],
    queues: list[str],
    lifetime_us: int | None = None,
    certificate: bool = False,
) -> tuple[str | None, Token]:
    """A token under a new name.

    Args:
        certificate: for callers with a client certificate of this name instead of a secret.

    Returns:
        Its text, which nobody can find out again (None with `certificate`), and its row.

    Raises:
        ConfigError: the name is taken, also by a revoked token: who used it must stay readable
            in logs; or a wrong value.
    """
    name, chosen, patterns = tokens.checked(name, scopes, queues)
    if lifetime_us is not None and lifetime_us <= 0:
        raise ConfigError("a token must live for longer than nothing")
    text, digest = (None, CERTIFICATE) if certificate else tokens.make(name)

    def add(connection: Connection) -> Token:
        if connection.execute(select(token.c.name).where(token.c.name == name)).first():
            raise ConfigError(f"there is a token {name!r} already, or there was: take another name")
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

    return text, write(engine, add)


def revoke(engine: Engine, name: str) -> None:
    """From within seconds on it counts nowhere. Twice is fine.

    Raises:
        ConfigError: no such token.
    """

    def end(connection: Connection) -> None:
        row = connection.execute(select(token).where(token.c.name == name)).first()
        if row is None:
            raise ConfigError(f"no token {name[:128]!r}")
        if row.revoked_at_us is None:
            now = now_us(connection)
            connection.execute(update(token).where(token.c.name == name).values(revoked_at_us=now))
            record(connection, action="token.revoke", subject=f"token:{name}")

    write(engine, end)


def receipt_key(engine: Engine) -> bytes:
    """The key of this deployment, made when it is first asked for."""
    for last in (False, True):
        try:
            return bytes.fromhex(write(engine, _kept_key))
        except StoreError:
            # Another process made it in the same moment: its key is there at the second look.
            if last:
                raise
    raise AssertionError("unreachable")


def _kept_key(connection: Connection) -> str:
    found = connection.execute(select(meta.c.value).where(meta.c.key == RECEIPT_KEY)).scalar()
    if found is None:
        found = secrets.token_hex(32)
        connection.execute(insert(meta).values(key=RECEIPT_KEY, value=found))
    return str(found)


def _public(row: Token) -> dict[str, object]:
    return {"scopes": row.scopes, "queues": row.queues, "expires_at_us": row.expires_at_us}


class TokenControl(Part):
    """Tokens of producers, consumers and operators. See `Control` for what all methods raise."""

    def all(self) -> list[Token]:
        """Return all tokens, without their secrets, which nobody has."""
        return listed(self._database.engine)

    def create(
        self,
        name: str,
        *,
        scopes: list[str],
        queues: list[str],
        lifetime_us: int | None = None,
        certificate: bool = False,
    ) -> tuple[str | None, Token]:
        """A new token: its text, which is shown this once, and its row."""
        return create(
            self._database.engine,
            name,
            scopes=scopes,
            queues=queues,
            lifetime_us=lifetime_us,
            certificate=certificate,
        )

    def revoke(self, name: str) -> None:
        """End a token; workers know it within seconds."""
        revoke(self._database.engine, name)

    def receipt_key(self) -> bytes:
        """The key with which this deployment seals receipts."""
        return receipt_key(self._database.engine)
