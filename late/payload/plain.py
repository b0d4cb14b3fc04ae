"""The protocol of codecs, the subject of a seal, and the codecs without an outer layer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from late.errors import ConfigError
from late.model import validation as validate
from late.model.task import Options, Record
from late.payload.terms import Terms
from late.payload.values import Format


class Subject(NamedTuple):
    """The task of a payload. A codec that signs binds the payload to it."""

    task_id: str
    """The id; `schedule:<name>` for a tick, whose id is made long after its payload."""
    name: str
    queue: str


class Sealing(Subject):
    """A subject, and the terms that a seal of the second form covers too."""

    terms: Terms
    owner: tuple[str, bytes] | None = None
    """The id and the key of the tenant or person to whom the payload belongs, if it has one."""

    @classmethod
    def of(cls, subject: Subject, terms: Terms, owner: tuple[str, bytes] | None = None) -> Sealing:
        made = cls(*subject)
        made.terms, made.owner = terms, owner
        return made


class Opening(Subject):
    """The subject of a stored row, and the row: a seal of the second form says what it must be."""

    record: Record
    options: Options | None

    @classmethod
    def of(cls, record: Record, options: Options | None) -> Opening:
        made_by = options.schedule if options is not None else None
        task_id = record.task_id if made_by is None else f"schedule:{made_by}"
        made = cls(task_id, record.name, record.queue)
        made.record, made.options = record, options
        return made


class Codec(Protocol):
    """The outer layer of a payload. Pure: any thread may call it, any number of times."""

    @property
    def name(self) -> str:
        """The name that is stored with each task, by which the worker finds the codec."""

    @property
    def format(self) -> Format:
        """The encoding of the values inside."""

    @property
    def require(self) -> bool:
        """True if a task stored under another codec's name is refused."""

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        """Return the bytes to store."""

    def open(self, payload: bytes, subject: Subject) -> bytes:
        """Return the bytes from which `seal` made `payload`.

        Raises:
            DecodeError: `seal` did not make `payload` for this subject.
        """


class Plain(msgspec.Struct, frozen=True):
    """The codec without an outer layer: the stored bytes are the encoded values."""

    format: Format = "json"

    @property
    def name(self) -> str:
        return self.format

    @property
    def require(self) -> bool:
        return False

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        return payload

    def open(self, payload: bytes, subject: Subject) -> bytes:
        return payload


JSON = Plain("json")
MSGPACK = Plain("msgpack")
_PARTS = ("name", "format", "seal", "open")
BUILTIN: dict[str, Codec] = {"json": JSON, "msgpack": MSGPACK}


def resolve(codec: Codec | str) -> Codec:
    """Return the codec itself, or the one with the name `json` or `msgpack`.

    Raises:
        ConfigError: the name is another one, or it is no codec.
    """
    if not isinstance(codec, str):
        if isinstance(codec, type) or not all(hasattr(codec, part) for part in _PARTS):
            raise ConfigError(
                f"codec {validate.shown(codec)} is neither 'json', 'msgpack' nor a codec such as"
                " late.Signed(...)"
            )
        return codec
    if codec not in BUILTIN:
        raise ConfigError(f"codec {validate.shown(codec)} is neither 'json' nor 'msgpack'")
    return BUILTIN[codec]
