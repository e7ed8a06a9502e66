"""What the far side has of a model's files: exact paths, revisions, sizes and digests, as pieces to fetch.

Runs in a download child only: it opens connections, through huggingface-hub and its client. Fetches no content.
"""

import fnmatch
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from huggingface_hub.file_download import get_hf_file_metadata, hf_hub_url
from huggingface_hub.hf_api import HfApi, RepoFile
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)
from msgspec.structs import replace

from hypnos_engine import __version__
from hypnos_engine.catalog.downloads.orders import Piece
from hypnos_engine.catalog.downloads.places import checked_path
from hypnos_engine.config.problems import shown_text
from hypnos_engine.domain.errors import InvalidRequest

if TYPE_CHECKING:
    import httpx

    from hypnos_engine.catalog.entries import CatalogFile

ASK_TIMEOUT_S: Final = 30.0
_NAME: Final = "hypnos"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")
_NO_HEAD: Final = (405, 501)
"""Some servers tell nothing about a file before they send it."""
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class Mismatch(InvalidRequest):
    """The far side has something else than the catalog lists."""


class Hub:
    """The hub, and whatever else is reached over https. `token` is sent to the hub only, and only where needed."""

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        self._endpoint = endpoint
        self._api = HfApi(endpoint=endpoint, token=token or False, library_name=_NAME, library_version=__version__)
        self._token: str | bool = token or False

    def resolve(self, file: "CatalogFile") -> Iterator[Piece]:
        """Ask for one file of the catalog; a folder is many pieces.

        Raises errors of huggingface-hub and httpx, Mismatch, and InvalidRequest for what cannot be fetched at all.
        """
        if is_address(file.repo):
            yield self._ask_plain(file)
        elif file.is_folder or file.is_pattern:
            yield from self._list(file)
        else:
            yield self._ask_hub(file)

    def address_of(self, piece: Piece) -> str:
        """Where the bytes of a piece are asked for."""
        if is_address(piece.repo):
            return plain_address(piece.repo, piece.remote)
        return hf_hub_url(piece.repo, piece.remote, revision=piece.revision, endpoint=self._endpoint)

    def headers_for(self, piece: Piece) -> dict[str, str]:
        """What is sent along; a token goes to no plain address."""
        token = False if is_address(piece.repo) else self._token
        headers: dict[str, str] = build_hf_headers(token=token, library_name=_NAME, library_version=__version__)
        headers["Accept-Encoding"] = "identity"
        return headers

    def _ask_hub(self, file: "CatalogFile") -> Piece:
        url = hf_hub_url(file.repo, file.remote, revision=file.revision, endpoint=self._endpoint)
        found = get_hf_file_metadata(
            url,
            token=self._token,
            timeout=ASK_TIMEOUT_S,
            library_name=_NAME,
            library_version=__version__,
            endpoint=self._endpoint,
        )
        etag = (found.etag or "").lower()
        piece = Piece(
            repo=file.repo,
            remote=file.remote,
            local=checked_path(file.local),
            revision=found.commit_hash or file.revision,
            size_bytes=found.size,
            sha256=etag if _SHA256.fullmatch(etag) else None,
            git_sha1=etag if _SHA1.fullmatch(etag) else None,
            etag=found.etag,
            gated=file.gated,
        )
        return as_listed(file, piece)

    def _list(self, file: "CatalogFile") -> Iterator[Piece]:
        commit = self._api.repo_info(file.repo, revision=file.revision, timeout=ASK_TIMEOUT_S).sha or file.revision
        inside = file.remote.strip("/")
        tree = self._api.list_repo_tree(
            file.repo, path_in_repo=None if file.is_pattern else inside or None, recursive=True, revision=commit
        )
        found = [entry for entry in tree if isinstance(entry, RepoFile) and _is_meant(entry.path, file)]
        if not found:
            raise Mismatch(f"{file.repo} has nothing that {shown_text(file.remote)} names.")
        if file.is_pattern and len(found) > 1:
            names = ", ".join(entry.path for entry in found[:5])
            raise Mismatch(f"{shown_text(file.remote)} fits {len(found)} files of {file.repo}: {names}.")
        folder = None if file.is_pattern else file.local.rstrip("/")
        for entry in sorted(found, key=lambda entry: entry.path):
            below = entry.path.removeprefix(inside).lstrip("/")
            piece = Piece(
                repo=file.repo,
                remote=entry.path,
                local=checked_path(file.local if folder is None else f"{folder}/{below}"),
                revision=commit,
                size_bytes=entry.lfs.size if entry.lfs else entry.size,
                sha256=entry.lfs.sha256 if entry.lfs else None,
                git_sha1=None if entry.lfs else entry.blob_id,
                folder=folder,
                gated=file.gated,
            )
            yield piece if folder is not None else as_listed(file, piece)

    def _ask_plain(self, file: "CatalogFile") -> Piece:
        if file.is_folder or file.is_pattern:
            raise InvalidRequest(f"{file.repo} is no repository of the hub; only single files are fetched from it.")
        answer: httpx.Response = get_session().head(
            plain_address(file.repo, file.remote),
            headers={"Accept-Encoding": "identity"},
            timeout=ASK_TIMEOUT_S,
        )
        if answer.status_code not in _NO_HEAD:
            hf_raise_for_status(answer)
        told = {} if answer.is_error else answer.headers
        length, etag = told.get("Content-Length", ""), told.get("ETag", "")
        piece = Piece(
            repo=file.repo,
            remote=file.remote,
            local=checked_path(file.local),
            size_bytes=int(length) if length.isascii() and length.isdecimal() else file.size_bytes,
            etag=etag if etag and not etag.startswith("W/") else None,
        )
        return as_listed(file, piece)


def is_address(repo: str) -> bool:
    """Whether a repository is an address and not a name on the hub."""
    return "://" in repo


def plain_address(base: str, remote: str) -> str:
    """`remote` below an `https://` address. Raises InvalidRequest for an address that anybody could listen to."""
    parts = urlsplit(base)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InvalidRequest(f"{shown_text(base)} is no https address; nothing is downloaded from it.")
    return f"{base.rstrip('/')}/{quote(remote)}"


def as_listed(file: "CatalogFile", piece: Piece) -> Piece:
    """The piece with what the catalog knows of it. Raises Mismatch when the far side says something else."""
    if file.size_bytes is not None and piece.size_bytes not in (None, file.size_bytes):
        raise Mismatch(
            f"{file.remote} of {file.repo} has {piece.size_bytes} bytes and the catalog lists {file.size_bytes}: "
            "the publisher has changed it. Update the catalog."
        )
    if file.sha256 is not None and piece.sha256 not in (None, file.sha256):
        raise Mismatch(
            f"{file.remote} of {file.repo} is not the file that the catalog lists: its SHA-256 differs. "
            "Update the catalog."
        )
    return replace(piece, size_bytes=piece.size_bytes or file.size_bytes, sha256=file.sha256 or piece.sha256)


def _is_meant(path: str, file: "CatalogFile") -> bool:
    if path.rpartition("/")[2].startswith(".git"):
        return False  # what only the repository itself needs
    if file.is_pattern:
        return fnmatch.fnmatchcase(path, file.remote)
    inside = file.remote.strip("/")
    return not inside or path.startswith(f"{inside}/")
