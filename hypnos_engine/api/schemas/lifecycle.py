"""Answers of `/health` and `/ready` (contract §3)."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"
    service: Literal["hypnos"] = "hypnos"
    version: str
    """The program's version, without a leading v."""
    uptime_secs: int


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    reason: str | UnsetType = UNSET
    """Why not, in words; absent when ready."""
