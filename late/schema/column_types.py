"""The types of columns that differ between dialects."""

from __future__ import annotations

import base64
from typing import Any

from sqlalchemy import LargeBinary
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeDecorator, UserDefinedType


class TaskIdType(UserDefinedType[str]):
    """The type of task ids: `uuid` on PostgreSQL and CockroachDB, else TEXT. Python has a string of
    36 characters."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "TEXT"

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return lambda value: None if value is None else str(value)


class Payload(TypeDecorator[bytes]):
    """The type of bytes. Spanner's dialect encodes base64, but does not decode what it reads."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        if value is None or dialect.name != "spanner+spanner":
            return value
        return base64.b64decode(value)


class Xid8(UserDefinedType[int]):
    """The type of PostgreSQL's 64-bit transaction ids. Only `late_task` uses it."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"

    def bind_processor(self, dialect: Any) -> Any:
        # There is no cast from an integer. A parameter of unknown type is read as the text of xid8.
        return lambda value: None if value is None else str(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return lambda value: None if value is None else int(value)


@compiles(TaskIdType, "postgresql")
@compiles(TaskIdType, "cockroachdb")
def _task_id_postgresql(*_: Any, **__: Any) -> str:
    return "uuid"
