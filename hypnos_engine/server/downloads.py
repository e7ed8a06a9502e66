"""`/v1/downloads`: the jobs that bring models onto this machine, for a person who asked for them.

Decides how a job is spelled. Opens no connection itself, and never tells a token.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from hypnos_engine.api.schemas import downloads as wire
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.records import Job
from hypnos_engine.catalog.downloads.specs import files_of
from hypnos_engine.catalog.entries import CatalogFile
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.domain.errors import NotFound
from hypnos_engine.server.answers import json_response
from hypnos_engine.server.bodies import read_json, read_optional_json
from hypnos_engine.server.download_requests import ResumeWish
from hypnos_engine.server.readings import DOWNLOAD, RESUME


@dataclass(frozen=True, slots=True)
class DownloadDesk:
    """One server's jobs, and the catalog that names what can be asked for."""

    downloads: Downloads
    shelf: Shelf

    async def files_of(self, spec: str) -> tuple[CatalogFile, ...]:
        """Raises InvalidRequest, and NotFound without a catalog."""
        loop = asyncio.get_running_loop()
        return files_of(spec, await loop.run_in_executor(None, self.shelf.catalog), self.shelf.platform)


DOWNLOADS: Final = web.AppKey("downloads", DownloadDesk)


async def list_downloads(request: web.Request) -> web.Response:
    """Every job that is known, newest first."""
    jobs = _desk(request).downloads.jobs()
    return json_response(wire.DownloadList(data=tuple(download_of(job) for job in jobs)))


async def start_download(request: web.Request) -> web.Response:
    """Begin a job, or go on with the one that is there for the same files."""
    desk = _desk(request)
    wish = await read_json(request, DOWNLOAD)
    files = await desk.files_of(wish.spec)
    return json_response(
        download_of(await desk.downloads.request(wish.spec, files, token=wish.token, again=wish.again))
    )


async def pause_download(request: web.Request) -> web.Response:
    """Stop a job and keep what has come."""
    return json_response(download_of(await _desk(request).downloads.pause(request.match_info["id"])))


async def resume_download(request: web.Request) -> web.Response:
    """Go on with a job that is paused, has failed or waits for its next try."""
    downloads = _desk(request).downloads
    wish = await read_optional_json(request, RESUME, ResumeWish(None))
    return json_response(download_of(await downloads.resume(request.match_info["id"], token=wish.token)))


async def cancel_download(request: web.Request) -> web.Response:
    """Stop a job for good and remove what has come."""
    return json_response(download_of(await _desk(request).downloads.cancel(request.match_info["id"])))


def _desk(request: web.Request) -> DownloadDesk:
    desk = request.app.get(DOWNLOADS)
    if desk is None:
        raise NotFound("This server downloads nothing.")
    return desk


def download_of(job: Job) -> wire.Download:
    """A job as the wire spells it."""
    return wire.Download(
        id=job.id,
        spec=job.spec,
        state=job.state.value,
        bytes_done=job.done_bytes,
        bytes_total=job.total_bytes,
        bytes_per_s=job.bytes_per_s,
        eta_secs=job.eta_s,
        error=job.error,
        created_unix_ms=job.created_unix_ms,
        files=_files_of(job),
    )


def _files_of(job: Job) -> tuple[wire.DownloadFile, ...]:
    if not job.pieces:
        return tuple(
            wire.DownloadFile(
                file.configured_path, file.repo, file.remote, file.revision, file.size_bytes, file.sha256, done=False
            )
            for file in job.wanted
        )
    digests = (job.digests + (None,) * len(job.pieces))[: len(job.pieces)]
    return tuple(
        wire.DownloadFile(
            piece.local,
            piece.repo,
            piece.remote,
            piece.revision,
            piece.size_bytes,
            digest or piece.sha256,
            done=piece.done,
        )
        for piece, digest in zip(job.pieces, digests, strict=True)
    )
