"""Bodies and answers of the routes that move, switch and hold models (contract §6.5, §6.6, §14.2)."""

from typing import Literal

import msgspec

from hypnos_engine.api.schemas.models import LayerPlacementPlan
from hypnos_engine.domain.kinds import MoeOffload, Tier


class TierRequest(msgspec.Struct, frozen=True):
    model: str
    target_tier: Tier
    context_len: int | float | None = None
    """KV cells to allocate in tier 1; left out = as configured."""


class TierAnswer(msgspec.Struct, frozen=True):
    model: str
    placement: LayerPlacementPlan


class SwitchAnswer(msgspec.Struct, frozen=True):
    model: str
    enabled: bool
    """The new state."""
    placement: LayerPlacementPlan


class OffloadRequest(msgspec.Struct, frozen=True):
    mode: str
    """off, auto or on; anything else is 422."""


class OffloadAnswer(msgspec.Struct, frozen=True):
    model: str
    moe_offload: MoeOffload
    applies: Literal["now", "next_load"]
    """now for a model that is idle or not loaded, next_load for one at work."""
    placement: LayerPlacementPlan


class FreeRequest(msgspec.Struct, frozen=True):
    for_secs: float | None = None
    """How long the accelerator is wanted; left out = until it is given back."""


class MovedModel(msgspec.Struct, frozen=True, rename={"from_tier": "from", "to_tier": "to"}):
    model: str
    from_tier: Tier
    to_tier: Tier


class HoldAnswer(msgspec.Struct, frozen=True):
    held: bool
    until_unix_ms: int | None
    """When the hold ends by itself; null = never."""
    moved: tuple[MovedModel, ...]
    """Models that leave the accelerator, or come back to it."""
