"""The error body of every route (contract §4); it names what went wrong and never carries a stack trace."""

import msgspec
from msgspec import UNSET, UnsetType


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    message: str
    type: str
    """Machine-readable; the values are those of `hypnos_engine.api.error_table`."""
    param: UnsetType | None = UNSET
    """Present, as null, on 401 and on a per-key 429 only (contract §2)."""
    code: str | UnsetType = UNSET
    """Present on 401 and on a per-key 429 only."""


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail
