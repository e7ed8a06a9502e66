"""What the bodies of `/v1/downloads` mean: defaults, bounds, and the words of a refusal.

Pure, like all readings: it may run in a process of its own.
"""

from dataclasses import dataclass, field
from typing import Final

from hypnos_engine.api.schemas.downloads import DownloadRequest, ResumeRequest
from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.server.options import ServerOptions

_TOKEN_MAX_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class DownloadWish:
    spec: str
    token: str | None = field(repr=False)
    again: bool


@dataclass(frozen=True, slots=True)
class ResumeWish:
    token: str | None = field(repr=False)


def read_download(body: DownloadRequest, _: ServerOptions) -> DownloadWish:
    """Raises InvalidRequest."""
    spec = body.spec.strip()
    if not spec or not spec.isprintable():
        raise InvalidRequest("spec: name an entry of the catalog, as `<id>` or `<id>:<quant>`.")
    return DownloadWish(spec, _token(body.token), bool(body.again))


def read_resume(body: ResumeRequest, _: ServerOptions) -> ResumeWish:
    """Raises InvalidRequest."""
    return ResumeWish(_token(body.token))


def _token(token: str | None) -> str | None:
    """The refusal does not show it."""
    text = (token or "").strip()
    if len(text) > _TOKEN_MAX_CHARS or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequest("token: this is no access token.")
    return text or None
