"""Bodies and answers of the request log (contract §15)."""

from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from hypnos_engine.config.choices import LogLevel
from hypnos_engine.domain.kinds import Tier


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. A field is null where the call did not get so far, or where there is no such figure."""

    id: str
    """The `x-request-id` of the answer."""
    route: str
    """As documented, without host and query."""
    method: str
    status: int
    """499 when the client left. A stream that failed midway keeps its 200, and has an `error`."""
    key: str
    """Label of the key, `local` when none is needed."""
    started_at: datetime
    """In UTC."""
    duration_ms: float
    """From the request's head to the last byte of its answer."""
    model: str | None
    stream: bool | None
    tokens_in: int | None
    tokens_out: int | None
    cached_tokens: int | None
    """Of `tokens_in`, those that were still in a cache."""
    tokens_per_s: float | None
    """Of the answer."""
    waited_ms: float | None
    """Until it held its model, the load included."""
    inference_ms: float | None
    tier_switch_ms: float | None
    """Of the wait, the part in which its model was being loaded."""
    previous_tier: Tier | None
    error: str | None
    """What went wrong, for a person. Below `debug` it repeats nothing of what the client wrote."""
    error_type: str | None
    """As in the body of an error (contract §4)."""
    level: LogLevel
    """The level at which the call was captured."""
    truncated: bool
    """Whether some text below is not whole."""
    input: str | UnsetType = UNSET
    """What the model was told; from `debug` on."""
    output: str | UnsetType = UNSET
    """What it answered; from `debug` on."""
    request_payload: str | UnsetType = UNSET
    """The request's body; at `trace`."""
    response_payload: str | UnsetType = UNSET
    """The answer's body, events of a stream included; at `trace`."""


class RequestLogPage(msgspec.Struct, frozen=True, kw_only=True):
    level: LogLevel
    capacity: int
    """Most records that are kept; fewer where their text is long."""
    stored: int
    """Records that the caller may see, whatever the filters."""
    records: tuple[LogRecord, ...]
    """Newest first."""


class Cleared(msgspec.Struct, frozen=True):
    cleared: Literal[True] = True


class LogLevelRequest(msgspec.Struct, frozen=True):
    level: str
    """off, error, warn, info, debug or trace."""


class LogLevelAnswer(msgspec.Struct, frozen=True):
    level: LogLevel
