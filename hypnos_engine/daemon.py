"""The composition root: settings become a running engine here and nowhere else.

It wires the rooms together and decides the order of start and end; it holds no rule about models, memory or requests.
"""

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypnos_engine import __version__
from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.terms import Terms
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.config import load as config
from hypnos_engine.config.overlay import Overlay
from hypnos_engine.config.paths import Folders, is_absent, prepare, private_folder, standard_folders, write_new
from hypnos_engine.config.server_settings import ServerSettings
from hypnos_engine.config.settings import Settings
from hypnos_engine.config.starter import model_roots, starter_folder, starter_text
from hypnos_engine.domain.errors import BindRefused, StartRefused
from hypnos_engine.domain.kinds import EngineKind, Modality, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.engines.holder import HolderProcess
from hypnos_engine.engines.registry import EngineRegistry
from hypnos_engine.engines.runtimes import default_runtime
from hypnos_engine.engines.spares import Spares
from hypnos_engine.journal import LogFormat, writing_log
from hypnos_engine.presence import Presence
from hypnos_engine.runtime.feed import ChangeKind
from hypnos_engine.runtime.local import LocalRuntime
from hypnos_engine.runtime.parking import ParkedConversations
from hypnos_engine.runtime.pool import Pool
from hypnos_engine.runtime.scheduling import limits_of
from hypnos_engine.runtime.snapshot import Decision
from hypnos_engine.runtime.this_machine import find_machine
from hypnos_engine.server.app import make_app
from hypnos_engine.server.downloads import DOWNLOADS, DownloadDesk
from hypnos_engine.server.options import AccessKey, LogTerms, ServerOptions, StreamTimes, WorkloadProfile
from hypnos_engine.server.pool import POOL
from hypnos_engine.server.site import Site
from hypnos_engine.telemetry.decided import Decided
from hypnos_engine.telemetry.latency import Latencies

log = logging.getLogger("hypnos")

DEMO_MODEL = ModelSpec(
    id=ModelId("demo"),
    name="Demonstration",
    modality=Modality.TEXT,
    engine=EngineKind.FAKE,
    weights_path="",
    context_len=8192,
    initial_tier=Tier.GPU,
)
CHAT = (Modality.TEXT, Modality.VISION, Modality.SPEECH_TO_TEXT)


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What the user asked for on the command line; None = as configured."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    models_dir: Path | None = None
    demo: bool = False
    insecure_no_auth: bool = False
    log_format: LogFormat = LogFormat.TEXT


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the user is told once the port is open."""

    address: str
    models: tuple[str, ...]
    config_path: Path | None
    models_dirs: tuple[Path, ...]
    log_dir: Path
    notices: tuple[str, ...]
    first_model: str | None
    """A model that answers chats; None when none is configured."""
    needs_key: bool = False
    """True when every call has to carry an API key."""


Announce = Callable[[Announcement], None]


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """An engine whose port is open. Made by `running_engine`, on whose loop it lives."""

    announcement: Announcement
    presence: Presence
    _site: Site
    _runtime: LocalRuntime
    _settings: Settings
    _spares: Spares | None

    async def stage(self) -> None:
        """Bring the startup models to their tiers; called once. Cancelling it leaves the rest where they are."""
        await _start(self._runtime, self._settings)
        if self._spares is not None:
            self._spares.begin()

    async def drain(self, longest_s: float | None = None) -> None:
        """Take no more requests and let the running ones end, for `longest_s` or as long as is configured."""
        seconds = self._settings.server.drain_secs
        if longest_s is not None:
            seconds = min(seconds, longest_s)
        await asyncio.gather(self._site.drain(seconds), self._runtime.drain(seconds))


@asynccontextmanager
async def running_engine(request: ServeRequest) -> AsyncIterator[ServingEngine]:
    """Serve for the length of the block; no worker, socket or file of it is left afterwards.

    Raises StartRefused and its kin before anything is served. Has to run on the main thread: workers are bound to the
    life of the thread that starts them. Catches no signals.
    """
    folders = standard_folders()
    prepare(folders)
    settings, first_start = _settings(request, folders)
    loopback = await is_loopback(settings.server.host)
    _refuse_what_is_unsafe(settings, request, loopback=loopback)
    roots = model_roots(settings.models_dirs)
    with ExitStack() as stack:
        presence = stack.enter_context(Presence.claimed(folders.run))
        stack.enter_context(writing_log(folders.logs, log_format=request.log_format))
        latencies, decided = Latencies(), Decided()
        # What these two tell concerns a runtime that does not exist yet when they are made.
        holder = HolderProcess(default_runtime(), lambda files: runtime.pages_lost(files))
        conversations = ParkedConversations(
            enabled=settings.hardware.kv_park,
            max_bytes=settings.hardware.kv_park_max_bytes or 0,
            on_dropped=lambda model: runtime.parked_dropped(model),
        )
        shelf = Shelf(roots)
        registry = EngineRegistry()
        spares = _spares(registry, settings)
        runtime = LocalRuntime(
            settings.models,
            roots,
            lambda spec: registry.make(spec.id, spec.engine),
            limits_of(settings),
            holder=holder,
            conversations=conversations,
            kv_idle_timeout_s=settings.server.kv_idle_timeout_secs,
            on_workflow_ended=latencies.workflow_ended,
            on_decision=lambda decision: _count(decided, decision),
            spare_bytes=lambda: 0 if spares is None else spares.bytes,
            tested=shelf.tested_architectures,
        )
        options = _options(settings, presence.token_sha256, folders, loopback=loopback)
        app = make_app(runtime, options, latencies=latencies, decided=decided, shelf=shelf)
        downloads = Downloads(
            Ledger(folders.state),
            download_terms(settings, roots),
            tell=lambda job: runtime.changes().publish(ChangeKind.DOWNLOAD, job),
            release=runtime.release,
        )
        app[DOWNLOADS] = DownloadDesk(downloads, shelf)
        app[POOL] = pool = Pool(runtime, roots, shelf, _overlay(settings, folders))
        site = Site(app, _host_to_bind(settings.server.host), settings.server.port)
        await site.start()
        try:
            await downloads.open()
            presence.publish(site.address)
            announcement = _announcement(settings, roots, site.address, folders, first_start=first_start)
            # What was made until now stays: a full collection that looked through it would hold the loop for 30 ms.
            gc.freeze()
            yield ServingEngine(announcement, presence, site, runtime, settings, spares)
        finally:
            await site.close()
            await pool.close()
            await downloads.close()
            await runtime.stop()
            if spares is not None:
                await spares.close()
            await holder.stop()
            conversations.close()
            log.info("stopped")


async def serve(request: ServeRequest, *, announce: Announce, announce_ready: Announce) -> None:
    """Run the engine until SIGTERM or SIGINT, then drain. Raises StartRefused and its kin before anything is served.

    `announce` is called once the port is open, `announce_ready` once the startup models are in place.
    """
    stop = _Stop()
    # The signals are let go of last: nothing is left behind that the default end would leave behind.
    with _stop_signals(stop):
        async with running_engine(request) as engine:
            stop.presence = engine.presence
            announce(engine.announcement)
            await _stage_and_wait(engine, stop.asked, lambda: announce_ready(engine.announcement))
            await engine.drain()


# --- settings -------------------------------------------------------------------------------------------------------


def _settings(request: ServeRequest, folders: Folders) -> tuple[Settings, bool]:
    """The settings, and whether a first configuration was written for them."""
    flags: dict[str, object] = {
        "server.host": request.host,
        "server.port": request.port,
        "models_dir": request.models_dir,
    }
    if request.demo:
        found = config.load(request.config, os.environ, flags, folders=folders) if request.config else None
        found = found or config.load(None, _without_config(), flags, folders=_nowhere(folders))
        return _with_models(found, (DEMO_MODEL,)), False
    first_start = _write_first_configuration(request, folders)
    return config.load(request.config, os.environ, flags, folders=folders), first_start


def _write_first_configuration(request: ServeRequest, folders: Folders) -> bool:
    if request.config is not None or os.environ.get("HYPNOS_CONFIG", "").strip():
        return False
    if not is_absent(folders.config_file):
        return False  # what is wrong with it is said when it is read
    private_folder(folders.config)
    private_folder(folders.models)
    return write_new(folders.config_file, starter_text(folders.models, starter_folder()))


def _without_config() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "HYPNOS_CONFIG"}


def _nowhere(folders: Folders) -> Folders:
    """Folders whose configuration does not exist: a demonstration shows itself, not the user's models."""
    return replace(folders, config=folders.run / "demonstration")


def _with_models(settings: Settings, models: tuple[ModelSpec, ...]) -> Settings:
    """Other models than those that are configured; what happens to them is not kept."""
    return replace(settings, models=models, overlay=None)


def _overlay(settings: Settings, folders: Folders) -> Overlay | None:
    """Where changes of the pool are kept."""
    return None if settings.overlay is None else Overlay(settings.overlay, settings.source or folders.config_file)


def _refuse_what_is_unsafe(settings: Settings, request: ServeRequest, *, loopback: bool) -> None:
    if settings.server.tls is not None:
        raise StartRefused(
            "server.tls is configured, but this version cannot serve https yet. Remove the section to serve http, "
            "or put a TLS proxy in front of it."
        )
    for key in settings.server.keys:
        if key.models or key.expires is not None:
            raise StartRefused(
                f"The API key '{key.label}' is restricted by `models` or `expires`, and this version cannot hold a key "
                "to either yet. Remove the restriction, or the key."
            )
    if loopback or settings.server.keys or request.insecure_no_auth:
        return
    raise BindRefused(
        f"The address {settings.server.host} is open to other computers and no API key is configured. Set "
        "server.api_keys (or HYPNOS_API_KEYS), or start with --insecure-no-auth if that is what you want."
    )


async def is_loopback(host: str) -> bool:
    """Whether only this computer can reach a host: decided by addresses, not by how its name is spelled.

    A name is loopback when every address it stands for is. Raises StartRefused when it stands for none.
    """
    if _is_localhost(host):
        return True
    if not host:
        return False  # every address of this computer
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StartRefused(f"The host '{host}' (server.host) is not known: {error.strerror}.") from error
    except UnicodeError as error:  # a part of the name is empty or longer than names can be
        raise StartRefused(f"The host '{host}' (server.host) is no host name.") from error
    return bool(found) and all(_is_loopback_address(str(address[0])) for *_, address in found)


def _is_localhost(host: str) -> bool:
    return host.lower().removesuffix(".") == "localhost"


def _host_to_bind(host: str) -> str:
    """However it is spelled, localhost means this computer's own addresses, not what a name server makes of it."""
    return "localhost" if _is_localhost(host) else host


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _options(settings: Settings, local_token_sha256: str, folders: Folders, *, loopback: bool) -> ServerOptions:
    server, limits = settings.server, settings.limits
    keys = tuple(AccessKey(key.label, key.sha256, admin=key.admin, weight=key.weight) for key in server.keys)
    if keys:
        # The user's own programs on this machine reach their engine by a token that lives as long as the process.
        keys = (*keys, AccessKey("local", local_token_sha256, admin=True))
    return ServerOptions(
        version=__version__,
        keys=keys,
        loopback=loopback,
        allowed_hosts=server.allowed_hosts,
        allowed_origins=server.allowed_origins,
        max_body_bytes=limits.max_body_bytes,
        max_body_bytes_in_flight=limits.max_body_bytes_in_flight,
        spool_dir=str(folders.run),
        max_prompt_chars=limits.max_prompt_chars,
        max_tokens_cap=limits.max_tokens_cap,
        request_timeout_s=limits.request_timeout_secs,
        drain_s=server.drain_secs,
        stream=StreamTimes(hold_s=server.stream_hold_secs),
        profile=_profile(server),
        metrics_need_key=server.metrics_require_auth,
        request_log=LogTerms(
            entries=server.request_log_entries,
            level=server.request_log_level,
            blank=server.request_log_redact.everything,
            patterns=server.request_log_redact.patterns,
        ),
    )


def _count(decided: Decided, decision: Decision) -> None:
    record = decision.record
    decided.record(record.kind, record.model, record.numbers, record.reason)


def download_terms(settings: Settings, roots: tuple[Path, ...]) -> Terms:
    """How downloads run as configured; `roots` are the models folders."""
    chosen = settings.downloads
    ca_file = None if chosen.ca_file is None else str(chosen.ca_file)
    return Terms(roots, Network(chosen.hub, chosen.proxy, ca_file))


def _profile(server: ServerSettings) -> WorkloadProfile | None:
    if server.profile is None:
        return None
    return WorkloadProfile(server.profile.value, server.profile.metric, server.target_ms)


def _announcement(
    settings: Settings, roots: tuple[Path, ...], address: str, folders: Folders, *, first_start: bool
) -> Announcement:
    notices = [str(problem) for problem in (*settings.warnings, *settings.without_effect)]
    if first_start:
        notices.insert(0, f"A first configuration was written to {folders.config_file}.")
    if not settings.models:
        notices.append("No model is configured yet: add a [[models]] block to the configuration.")
    enabled = [spec for spec in settings.models if spec.enabled]
    chat = next((spec.id for spec in enabled if any(m in CHAT for m in spec.modalities)), None)
    return Announcement(
        address=address,
        models=tuple(spec.id for spec in enabled),
        config_path=settings.source,
        models_dirs=roots,
        log_dir=folders.logs,
        notices=tuple(notices),
        first_model=chat,
        needs_key=bool(settings.server.keys),
    )


# --- running --------------------------------------------------------------------------------------------------------


def _spares(registry: EngineRegistry, settings: Settings) -> Spares | None:
    """The workers that are kept ready for the models of the configuration."""
    wanted = settings.hardware.spare_workers
    kinds = [spec.engine for spec in settings.models if spec.enabled]
    count = wanted if isinstance(wanted, int) else None
    return registry.keep_spares(kinds, count, settings.hardware.max_process_memory_bytes)


async def _stage_and_wait(engine: ServingEngine, stop: asyncio.Event, when_ready: Callable[[], None]) -> None:
    """Bring the startup models to their tiers, then wait for the signal to stop, whichever comes first."""
    starting = asyncio.create_task(engine.stage(), name="staging")
    stopping = asyncio.create_task(stop.wait(), name="stop signal")
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            when_ready()
            await stopping
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _start(runtime: LocalRuntime, settings: Settings) -> None:
    """Find out what the machine is and bring the startup models to their tiers; the runtime ends what begins here."""
    roots, state = model_roots(settings.models_dirs), standard_folders().state
    await runtime.start(await find_machine(settings, roots, state, runtime.in_use))
    log.info("ready")


@dataclass(slots=True)
class _Stop:
    """The wish to end: the first signal asks for a drain, a second one ends the program at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    presence: Presence | None = None

    def ask(self, number: int) -> None:
        if self.asked.is_set():
            if self.presence is not None:
                self.presence.withdraw()
            os._exit(128 + number)
        log.info("stopping")
        self.asked.set()


@contextmanager
def _stop_signals(stop: _Stop) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def asked_from_outside(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stop.ask, number)

    names = (signal.SIGINT, signal.SIGTERM)
    if sys.platform == "win32":
        before = [(name, signal.signal(name, asked_from_outside)) for name in names]
        try:
            yield
        finally:
            for name, previous in before:
                signal.signal(name, previous)
        return
    for name in names:
        loop.add_signal_handler(name, stop.ask, name)
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)
