"""What the bodies of the placing routes mean: defaults, bounds, and the words of a refusal.

Pure, like all readings: it may run in a process of its own.
"""

import math
from dataclasses import dataclass
from typing import Final

from hypnos_engine.api.decoding import quoted, whole
from hypnos_engine.api.schemas.memory import KvParkRequest
from hypnos_engine.api.schemas.placing import FreeRequest, OffloadRequest, TierRequest
from hypnos_engine.domain.errors import InvalidRequest, UnknownOffloadMode
from hypnos_engine.domain.kinds import MoeOffload, Tier
from hypnos_engine.server.options import ServerOptions

BYTES_MAX: Final = 2**53
CELLS_MAX: Final = 2**31 - 1
HOLD_MAX_S: Final = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Move:
    model: str
    tier: Tier
    context_len: int | None


@dataclass(frozen=True, slots=True)
class Offload:
    mode: MoeOffload


@dataclass(frozen=True, slots=True)
class Hold:
    for_s: float | None
    """None = until it is given back."""


@dataclass(frozen=True, slots=True)
class Park:
    enabled: bool | None
    max_bytes: int | None


def read_move(body: TierRequest, _: ServerOptions) -> Move:
    """Raises InvalidRequest."""
    return Move(body.model, body.target_tier, whole(body.context_len, "context_len", least=1, most=CELLS_MAX))


def read_offload(body: OffloadRequest, _: ServerOptions) -> Offload:
    """Raises UnknownOffloadMode."""
    try:
        return Offload(MoeOffload(body.mode))
    except ValueError:
        modes = ", ".join(MoeOffload)
        raise UnknownOffloadMode(f"mode: unknown value {quoted(body.mode)}; it is one of {modes}.") from None


def read_hold(body: FreeRequest, _: ServerOptions) -> Hold:
    """Raises InvalidRequest."""
    seconds = body.for_secs
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= HOLD_MAX_S):
        raise InvalidRequest(f"for_secs: must be above 0 and at most {HOLD_MAX_S:.0f}.")
    return Hold(seconds)


def read_park(body: KvParkRequest, _: ServerOptions) -> Park:
    """Raises InvalidRequest."""
    if body.enabled is None and body.max_bytes is None:
        raise InvalidRequest("The body needs `enabled`, `max_bytes`, or both.")
    return Park(body.enabled, whole(body.max_bytes, "max_bytes", least=0, most=BYTES_MAX))
