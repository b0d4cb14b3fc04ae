"""Pydantic models and subclasses of `str` as arguments: the hooks of msgspec's coders.

Models are known by their methods, so that pydantic is imported only where the service has done so.
Other types reach a hook only if msgspec has no form for them, so ordinary arguments cost nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec


def is_row(kind: type) -> bool:
    """Tell whether `kind` is a class of SQLAlchemy's ORM (SQLModel's with a table) or Django's."""
    return hasattr(kind, "__mapper__") or (hasattr(kind, "_meta") and hasattr(kind, "pk"))


def is_model(kind: type) -> bool:
    """Tell whether `kind` is a model of pydantic 2 without a table of its own."""
    return hasattr(kind, "model_validate_json") and not is_row(kind)


def _is_lazy(kind: type) -> bool:
    """Tell whether `kind` is Django's class of texts whose language is chosen on use."""
    return any(
        (base.__module__, base.__name__) == ("django.utils.functional", "Promise")
        for base in kind.__mro__
    )


def schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a model.

    Raises:
        TypeError: `kind` is no model.
    """
    if not is_model(kind):
        raise TypeError(f"type {kind!r:.60}")
    try:
        found: dict[str, Any] = kind.model_json_schema()
    except Exception:  # A model may hold a type that has no schema, and be decoded all the same.
        return {"type": "object"}
    return found


def encode(value: Any) -> Any:
    """Return the plain form of a model, from which `decode` makes an equal one; plain text of a
    subclass of `str`, such as Django's `SafeString`.

    Raises:
        TypeError: the value is neither.
        ValueError: the model does not come back equal, such as one with a `SecretStr`.
    """
    kind = type(value)
    if issubclass(kind, str):  # Not `isinstance`, which proxies deceive.
        return str.__str__(value)
    if is_row(kind):
        raise TypeError(f"{kind.__name__} is a row of a table: pass its id")
    if _is_lazy(kind):
        raise TypeError("a lazy text of Django, such as a translation: pass str(...) of it")
    if not is_model(kind):
        why = f"objects of type {kind.__name__} have no form in JSON"
        raise TypeError(getattr(value, "late_refusal", why))  # Some say what is to be done.
    try:
        plain = value.model_dump(mode="json", by_alias=True, round_trip=True)
    except UnicodeDecodeError:
        raise ValueError(_bytes(value)) from None
    if decode(kind, plain).model_dump() != value.model_dump():
        raise ValueError(f"a model {kind.__name__} cannot be read back from its JSON unchanged")
    return plain


def _bytes(value: Any) -> str:
    """Say which field of a model has bytes that pydantic's default cannot write, and what helps."""
    where = ""
    for name in type(value).model_fields:
        try:
            value.model_dump(mode="json", include={name})
        except UnicodeDecodeError:
            where = f".{name}"
            break
    return (
        f"{type(value).__name__}{where} has bytes that are no UTF-8: give the model"
        " model_config = ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
    )


def decode(kind: Any, plain: Any) -> Any:
    """Return the model of type `kind`; `msgspec` tells the parameter if this raises ValueError.

    Raises:
        ValueError: pydantic finds a value wrong. The message has its place and no value.
        TypeError: `kind` is no model.
    """
    if not is_model(kind):
        raise TypeError(f"type {kind!r:.60}")
    try:
        return kind.model_validate_json(msgspec.json.encode(plain))
    except ValueError as error:
        raise ValueError(_why(error)) from None


def _why(error: Any) -> str:
    # Pydantic's own text quotes the values, and messages of late never do.
    found = error.errors(include_input=False, include_url=False) if hasattr(error, "errors") else []
    places = [(".".join(map(str, each["loc"])), each["msg"]) for each in found[:3]]
    return "; ".join(": ".join(filter(None, each)) for each in places) or type(error).__name__
