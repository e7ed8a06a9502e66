"""What the scheduler decided and why, with its numbers (`GET /v1/memory/decisions`)."""

from typing import Literal

import msgspec


class Alternative(msgspec.Struct, frozen=True):
    """A model that could have been chosen instead."""

    model: str
    cost: float | None
    """What the decision went by, in its own unit; the least was chosen. null = it was no choice at all."""
    why_not: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    """Counts up by one; starts anew with the server."""
    unix_ms: int
    kind: str
    model: str
    chosen: str
    """What was decided on; the model itself where nothing else is named."""
    because: str
    """One sentence for a person."""
    numbers: dict[str, float]
    alternatives: tuple[Alternative, ...]


class DecisionList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Decision, ...]
    """Newest first."""
