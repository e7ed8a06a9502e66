"""Real download jobs with real children against a hub on this machine, for the length of a block."""

import asyncio
import random
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.catalog.downloads.places import FOLDER
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.records import Job, JobState
from hypnos_engine.catalog.downloads.terms import Patience, Terms
from hypnos_engine.catalog.entries import CatalogFile, Role
from hypnos_engine.testing.local_hub import LocalHub, local_hub

KIB = 1024
BLOCK = 256 * KIB
REPO = "own/er"
WAIT_S = 100.0
QUICK = Patience(first_s=0.01, longest_s=0.05)
OVER = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED})


def content(size_bytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def wanted(remote: str = "m.gguf", local: str | None = None, repo: str = REPO, **fields: Any) -> CatalogFile:
    return CatalogFile(Role.WEIGHTS, repo, remote, local or remote, **fields)


FOREIGN = (
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
)
"""Settings of whoever runs the tests."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    with local_hub() as made:
        yield made


@dataclass
class Bench:
    """The jobs and what was told of them."""

    downloads: Downloads
    root: Path
    told: list[Job] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, job: Job) -> None:
        self.told.append(job)
        self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is asked after each change."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def over(self, job: Job) -> Job:
        """Return the job once it is at rest."""
        await self.until(lambda: self.downloads.job(job.id).state in OVER)
        return self.downloads.job(job.id)

    async def pull(self, *files: CatalogFile, **given: Any) -> Job:
        """Download to the end, whatever that is."""
        return await self.over(await self.downloads.request("test", files, **given))

    def unfinished(self) -> list[Path]:
        """What is left of downloads."""
        return sorted((self.root / FOLDER).rglob("*"))


@asynccontextmanager
async def bench(
    folder: Path, hub: LocalHub, *, go_on: bool = True, given: dict[str, Any] | None = None, **terms: Any
) -> AsyncIterator[Bench]:
    """Jobs that are kept in `folder`; leaving the block ends their children, and none is left."""
    made = Terms(
        **{
            "roots": (folder / "models",),
            "network": Network(hub=hub.address),
            "floor_bytes": 0,
            "patience": QUICK,
            "block_bytes": BLOCK,
            **terms,
        }
    )
    told: list[Bench] = []
    downloads = Downloads(Ledger(folder / "state"), made, tell=lambda job: told[0].tell(job), **(given or {}))
    told.append(Bench(downloads, made.roots[0]))
    await downloads.open(go_on=go_on)
    try:
        yield told[0]
    finally:
        await downloads.close()
        assert not children()


def children() -> list[psutil.Process]:
    """Download children of this process."""
    found = []
    for child in psutil.Process().children():
        try:
            if any("downloads.child" in word for word in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


async def held(hub: LocalHub) -> None:
    """Return once the hub has sent everything up to a hold."""
    assert await asyncio.to_thread(hub.held.acquire, timeout=WAIT_S)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its last name."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for 127.0.0.1, and the certificate to trust."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of that size at `folder` for the length of the block; needs root on Linux."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
