"""Asks the hub whether what the catalog says of its files still holds; downloads none of them and changes nothing.

The hub's client is imported when it is first needed: a server never pays for it at its start.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hypnos_engine.catalog.entries import Catalog, CatalogFile, Entry, Variant

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 30.0
"""How long one answer of the hub may take."""


class Kind(StrEnum):
    """What was found; the first group are faults of the catalog, the second is worth knowing."""

    MISSING = "missing"
    SIZE = "size"
    DIGEST = "digest"
    GATED = "gated"

    NEWER = "newer"
    """The newest revision has another file than the pinned one."""
    LEARNED = "learned"
    """The hub knows what the catalog does not."""
    UNREACHABLE = "unreachable"
    """The hub did not answer, or this user may not look: nothing is known."""


FAULTS = frozenset({Kind.MISSING, Kind.SIZE, Kind.DIGEST, Kind.GATED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one file."""

    spec: str
    """`<id>:<quant>`."""
    local: str
    kind: Kind
    message: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What the hub says about a file."""

    remote: str
    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class RemoteRepo:
    """What the hub says about a repository at a revision."""

    files: dict[str, RemoteFile]
    gated: bool


_Wanted = tuple[Entry, Variant, CatalogFile]


def check_online(catalog: Catalog, *, endpoint: str | None = None) -> Iterator[Finding]:
    """Compare every file with the hub's word, repository by repository; yield as answers come.

    `endpoint` is the hub's address (None: the client's own, which HF_ENDPOINT sets). Blocks for the network. Never
    raises for what the network or the hub does: that is a finding.
    """
    repos: dict[tuple[str, str | None], list[_Wanted]] = {}
    for wanted in catalog.files():
        file = wanted[2]
        repos.setdefault((file.repo, file.revision), []).append(wanted)
    api = _client(endpoint)
    for (repo, revision), files in repos.items():
        if repo.startswith("https://"):
            yield from _check_addresses(files)
        else:
            yield from _check_repo(api, repo, revision, files)


def matching(file: CatalogFile, names: Iterable[str]) -> list[str]:
    """The names in a repository that a file of the catalog can mean: itself, or what its pattern fits."""
    if file.is_pattern:
        return [name for name in names if fnmatchcase(name, file.remote)]
    return [name for name in names if name == file.remote]


def _client(endpoint: str | None) -> "HfApi":
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint, library_name="hypnos")


def _check_repo(api: "HfApi", repo: str, revision: str | None, files: list[_Wanted]) -> Iterator[Finding]:
    found = _ask(api, repo, revision)
    newest = _ask(api, repo, None) if revision is not None and isinstance(found, RemoteRepo) else None
    for entry, variant, file in files:
        spec = f"{entry.id}:{variant.quant}"
        if not isinstance(found, RemoteRepo):
            yield Finding(spec, file.local, found[0], found[1])
            continue
        if found.gated != file.gated:
            yield Finding(spec, file.local, Kind.GATED, f"gated is {found.gated}, the catalog says {file.gated}")
        names = matching(file, found.files)
        if file.is_folder:
            yield from _check_folder(spec, file, found)
        elif len(names) != 1:
            what = f"{len(names)} files fit {file.remote}" if names else f"{repo} has no {file.remote}"
            yield Finding(spec, file.local, Kind.MISSING, what)
        else:
            yield from _compare(spec, file, found.files[names[0]])
            if isinstance(newest, RemoteRepo) and newest.files.get(names[0]) != found.files[names[0]]:
                yield Finding(spec, file.local, Kind.NEWER, "the newest revision has another file, or none")


def _check_folder(spec: str, file: CatalogFile, found: RemoteRepo) -> Iterator[Finding]:
    prefix = "" if file.remote == "/" else file.remote
    inside = [remote for name, remote in found.files.items() if name.startswith(prefix)]
    if not inside:
        yield Finding(spec, file.local, Kind.MISSING, f"{file.repo} has nothing in {file.remote}")
        return
    total = sum(remote.size_bytes or 0 for remote in inside)
    yield Finding(spec, file.local, Kind.LEARNED, f"{len(inside)} files, {total} bytes")


def _compare(spec: str, file: CatalogFile, remote: RemoteFile) -> Iterator[Finding]:
    if file.size_bytes is not None and remote.size_bytes is not None and file.size_bytes != remote.size_bytes:
        message = f"{remote.size_bytes} bytes, the catalog says {file.size_bytes}"
        yield Finding(spec, file.local, Kind.SIZE, message)
    if file.sha256 is not None and remote.sha256 is not None and file.sha256 != remote.sha256:
        yield Finding(spec, file.local, Kind.DIGEST, f"sha256 {remote.sha256}, the catalog says {file.sha256}")
    learned = [
        f"{name} = {value!r}"
        for name, value, known in (
            ("remote", remote.remote, not file.is_pattern),
            ("size_bytes", remote.size_bytes, file.size_bytes is not None),
            ("sha256", remote.sha256, file.sha256 is not None),
        )
        if value is not None and not known
    ]
    if learned:
        yield Finding(spec, file.local, Kind.LEARNED, ", ".join(learned))


def _ask(api: "HfApi", repo: str, revision: str | None) -> RemoteRepo | tuple[Kind, str]:
    """What the hub says of a repository, or why it says nothing."""
    from huggingface_hub import errors

    try:
        answer = api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    except errors.GatedRepoError:
        return Kind.UNREACHABLE, f"{repo} is gated: accept its licence and log in to the hub"
    except errors.RevisionNotFoundError:
        return Kind.MISSING, f"{repo} has no revision {revision}"
    except errors.RepositoryNotFoundError:
        return Kind.MISSING, f"the hub has no repository {repo}, or not for this user"
    except Exception as error:  # whatever the network or the hub's client comes up with is an answer here
        return Kind.UNREACHABLE, f"{repo}: {_first_line(error)}"
    files = {
        sibling.rfilename: RemoteFile(
            sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs is not None else None
        )
        for sibling in answer.siblings or ()
    }
    return RemoteRepo(files, gated=bool(answer.gated))


def _check_addresses(files: list[_Wanted]) -> Iterator[Finding]:
    from huggingface_hub import get_session

    session = get_session()
    for entry, variant, file in files:
        spec = f"{entry.id}:{variant.quant}"
        url = file.repo + file.remote
        try:
            answer = session.head(url, follow_redirects=True, timeout=TIMEOUT_S)
            length = answer.headers.get("content-length", "")
            status = answer.status_code
        except Exception as error:  # as above
            yield Finding(spec, file.local, Kind.UNREACHABLE, f"{url}: {_first_line(error)}")
            continue
        if status in (404, 410):
            yield Finding(spec, file.local, Kind.MISSING, f"{url} answers {status}")
        elif status >= 300:
            yield Finding(spec, file.local, Kind.UNREACHABLE, f"{url} answers {status}")
        else:
            size_bytes = int(length) if length.isascii() and length.isdecimal() and len(length) < 20 else None
            yield from _compare(spec, file, RemoteFile(file.remote, size_bytes, None))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200] or type(error).__name__
