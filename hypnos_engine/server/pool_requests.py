"""What the bodies that change the pool mean: which of the two ways to name a model, and how long to wait.

Pure, like all readings: it may run in a process of its own.
"""

import math
from dataclasses import dataclass
from typing import Final

from hypnos_engine.api.decoding import quoted
from hypnos_engine.api.schemas.pool import AddRequest, ReplaceRequest
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.server.options import ServerOptions

DRAIN_SECS: Final = "drain_secs"
DRAIN_DEFAULT_S: Final = 120.0
DRAIN_MAX_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class PoolWish:
    """One of the two is not None."""

    catalog: str | None
    config: str | None
    drain_s: float = DRAIN_DEFAULT_S


def read_add(body: AddRequest, _: ServerOptions) -> PoolWish:
    """Raises InvalidRequest."""
    _check(body)
    return PoolWish(body.catalog, body.config)


def read_replace(body: ReplaceRequest, _: ServerOptions) -> PoolWish:
    """Raises InvalidRequest."""
    _check(body)
    drain_s = DRAIN_DEFAULT_S if body.drain_secs is None else drain_of(body.drain_secs)
    return PoolWish(body.catalog, body.config, drain_s)


def drain_of(value: float | str) -> float:
    """The seconds of a `drain_secs`. Raises InvalidRequest."""
    try:
        seconds = float(value)
    except ValueError:
        raise InvalidRequest(f"{DRAIN_SECS}: expected a number of seconds, got {quoted(value)}.") from None
    if not (math.isfinite(seconds) and 0 <= seconds <= DRAIN_MAX_S):
        raise InvalidRequest(f"{DRAIN_SECS}: must be from 0 to {DRAIN_MAX_S:.0f}.")
    return seconds


def _check(body: AddRequest | ReplaceRequest) -> None:
    if (body.catalog is None) == (body.config is None):
        raise InvalidRequest(
            "The body needs either `catalog` (`<id>` or `<id>:<quant>`) or `config` (one [[models]] block in TOML)."
        )
