"""Bodies and answers of `/v1/downloads`."""

from typing import Literal

import msgspec

DownloadState = Literal["queued", "running", "paused", "verifying", "done", "failed", "cancelled"]


class DownloadFile(msgspec.Struct, frozen=True):
    path: str
    """Below the models folder."""
    repo: str
    remote: str
    revision: str | None
    """Commit that the download stays with; null until the hub was asked, and for what is no repository."""
    bytes_total: int | None
    sha256: str | None
    """What the file has to be, or what it was found to be."""
    done: bool


class Download(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    spec: str
    state: DownloadState
    bytes_done: int
    bytes_total: int | None
    """null while some size is not known."""
    bytes_per_s: float | None
    """null unless bytes are coming."""
    eta_secs: float | None
    error: str | None
    """Why it is not running as it should, and what to do."""
    created_unix_ms: int
    files: tuple[DownloadFile, ...]


class DownloadList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Download, ...]
    """Newest first."""


class DownloadRequest(msgspec.Struct, frozen=True):
    spec: str
    """`<id>` or `<id>:<quant>` of the catalog, or `<owner>/<repository>/<file>[@<revision>]` of the hub."""
    token: str | None = None
    """For gated repositories. Kept in the operating system's keyring once it has worked; never shown again."""
    again: bool | None = None
    """true: fetch also what is there with the right size."""


class ResumeRequest(msgspec.Struct, frozen=True):
    token: str | None = None
    """As in the request that began it."""
