"""Bodies and answers of the routes that change the pool of models (contract §6.4)."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from hypnos_engine.api.schemas.models import LayerPlacementPlan


class AddRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Either of the two."""

    catalog: str | None = None
    """An entry of the catalog, as `<id>` (its default variant) or `<id>:<quant>`."""
    config: str | None = None
    """One [[models]] block in the TOML of the configuration; its paths are relative to the models folder."""


class ReplaceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Either `catalog` or `config`; the id inside them does not count."""

    catalog: str | None = None
    config: str | None = None
    drain_secs: float | None = None
    """How long running requests may take to end; 120 when left out."""


class PoolAnswer(msgspec.Struct, frozen=True):
    model: str
    action: Literal["added", "replaced", "removed"]
    persisted: bool
    """false when the change holds until the next restart only."""
    placement: LayerPlacementPlan | UnsetType = UNSET
    """Absent when the model was removed."""
