"""Turns the bytes of a request into a schema, or into a sentence that names the field which is wrong.

Decides how a refusal is worded. Never trusts the bytes: any input ends in a value or in InvalidRequest.
"""

import re
from typing import Any, TypeVar

import msgspec

from hypnos_engine.domain.errors import InvalidRequest

T = TypeVar("T")

MESSAGE_MAX_CHARS = 500
"""Longest sentence that may quote what a client sent."""

INT32_MAX = 2**31 - 1

_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}

_WITH_PATH = re.compile(r"^(?P<reason>.*?) - at `(?P<path>[^`]*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")
_EXPECTED = re.compile(
    r"^Expected `(?P<wanted>[^`]*)`(?P<bound> [<>]=? \S+| of length [<>]=? \S+)?(?P<rest>.*)$", re.DOTALL
)
_UNKNOWN = re.compile(r"^Invalid (?:enum )?value (?P<value>.*)$", re.DOTALL)

# Names of Python types in the library's messages, as a JSON user knows them.
_JSON_NAMES = {"int | float": "number", "int": "integer", "float": "number", "str": "string", "bool": "boolean"}


def decode_json(body: bytes | memoryview, schema: type[T]) -> T:
    """Decode a JSON body. Raises InvalidRequest with one sentence that names the field by its path."""
    try:
        return _decoder(schema).decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(shorten(_explain(str(error)))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(shorten(f"The body is not valid JSON: {error}")) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except MemoryError:
        raise InvalidRequest("The body holds more values than there is memory for.") from None


def shorten(message: str) -> str:
    """Bound what an answer repeats of a request."""
    return message if len(message) <= MESSAGE_MAX_CHARS else message[: MESSAGE_MAX_CHARS - 1] + "…"


def whole(value: float | None, name: str, *, least: int, most: int | None = None) -> int | None:
    """Read an optional count: `256.0` is 256. Raises InvalidRequest for a fraction or a value out of bounds."""
    if value is None:
        return None
    if isinstance(value, float) and not value.is_integer():
        raise InvalidRequest(f"{name}: expected an integer, got {value}.")
    count = int(value)
    if count < least:
        raise InvalidRequest(f"{name}: must be at least {least}.")
    if most is not None and count > most:
        raise InvalidRequest(f"{name}: must be at most {most}.")
    return count


def _decoder(schema: type[T]) -> msgspec.json.Decoder[T]:
    if schema not in _DECODERS:
        _DECODERS[schema] = msgspec.json.Decoder(schema)
    return _DECODERS[schema]


def _explain(reason: str) -> str:
    path = ""
    if match := _WITH_PATH.match(reason):
        reason, path = match["reason"], match["path"].removeprefix("$").removeprefix(".")
    if match := _MISSING.match(reason):
        field = f"{path}.{match['field']}" if path else match["field"]
        return f"{field}: this field is required."
    sentence = _reword(reason)
    return f"{path}: {sentence}." if path else f"The body: {sentence}."


def _reword(reason: str) -> str:
    if match := _UNKNOWN.match(reason):
        return f"unknown value {match['value']}"
    if match := _EXPECTED.match(reason):
        return f"expected {_json_names(match['wanted'])}{match['bound'] or ''}{_rest(match['rest'])}"
    return reason[:1].lower() + reason[1:]


def _rest(rest: str) -> str:
    return re.sub(r"`([^`]*)`", lambda found: _json_names(found[1]), rest)


def _json_names(wanted: str) -> str:
    wanted = wanted.removesuffix(" | null").replace("int | float", "number")
    return " or ".join(_JSON_NAMES.get(name, name) for name in wanted.split(" | "))


def quoted(value: Any) -> str:
    """A value as it may stand in a message: short, on one line."""
    return shorten(repr(value))[:120]
