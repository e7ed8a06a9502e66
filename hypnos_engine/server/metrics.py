"""`GET /metrics`: what was counted and what is, as Prometheus reads it (contract §16).

Decides the families. Labels are routes, configured models, configured keys, devices and words of this program: nothing
that a client wrote but names of workflows, of which a bounded number is kept.
"""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import psutil
from aiohttp import hdrs, web

from hypnos_engine.catalog.downloads.records import JobState
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.hardware.monitor import GpuSample
from hypnos_engine.runtime.snapshot import MemoryView
from hypnos_engine.server.accounting import ACCOUNTS, Accounts
from hypnos_engine.server.downloads import DOWNLOADS
from hypnos_engine.server.exchange import LIFECYCLE, OPTIONS, RUNTIME
from hypnos_engine.server.keys import find_key
from hypnos_engine.telemetry.exposition import CONTENT_TYPE, Buckets, Family, Labels, by_name, render, single
from hypnos_engine.telemetry.measures import Measure
from hypnos_engine.telemetry.traffic import Took

# A thread of our own: what a loop uses by default is the loop's affair.
_THREAD: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hypnos-metrics")
_TIERS: Final = {Tier.GPU: 1, Tier.RAM: 2, Tier.DISK: 3}
_HELP: Final = {
    Measure.CHAT_TTFT_MS: "Milliseconds from a chat's place in the queue to its first token, loads included.",
    Measure.CHAT_DECODE: "Tokens per second of chat answers.",
    Measure.CHAT_PREFILL: "Tokens per second in which prompts were read, cached parts aside.",
    Measure.TTS_RTF: "Speech: seconds of work for a second of sound.",
    Measure.TTS_TTFA_MS: "Speech: milliseconds to the first sound.",
    Measure.STT_RTF: "Transcription: seconds of work for a second of sound.",
    Measure.IMAGE_JCT_S: "Images: seconds from the request to the picture.",
    Measure.DOCUMENT_MS_PER_PAGE: "Documents: milliseconds for a page.",
}

_GPU_FIGURES: Final[tuple[tuple[str, str, Callable[[GpuSample], float | None]], ...]] = (
    ("gpu_utilization_percent", "How busy the GPU is.", lambda gpu: gpu.utilization_percent),
    ("gpu_temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature_celsius),
    ("gpu_power_watts", "Power that the GPU draws.", lambda gpu: gpu.power_watts),
    ("gpu_sm_clock_mhz", "Clock of the GPU.", lambda gpu: gpu.sm_clock_mhz),
    ("gpu_throttled", "1 while the GPU is slowed by power, heat or a fault.", lambda gpu: gpu.throttled),
    (
        "gpu_ecc_uncorrected_errors",
        "Memory errors that were not corrected since the driver was loaded.",
        lambda gpu: gpu.ecc_uncorrected_errors,
    ),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that a scrape tells, at one moment; nothing in it changes any more."""

    view: MemoryView
    version: str
    uptime_s: float
    in_flight: int
    event_readers: int
    answers: Mapping[tuple[str, str], int]
    times: Mapping[str, Took]
    routes: Mapping[str, Buckets]
    workflows: Mapping[str, Buckets]
    measured: Mapping[Measure, Buckets]
    key_requests: Mapping[str, int]
    key_rejections: Mapping[str, int]
    key_tokens: Mapping[str, int]
    key_tokens_today: Mapping[str, int]
    sums: "Sums"
    log_records: int
    log_bytes: int
    downloads: Mapping[str, int] | None
    """Jobs by state; None where nothing is downloaded."""
    download_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Sums:
    """Copies of what is counted without a histogram."""

    kinds: Mapping[str, int]
    waits: Mapping[str, int]
    refused: int
    loads: Mapping[str, int]
    load_failures: Mapping[str, int]
    evictions: Mapping[str, int]
    deaths: Mapping[str, int]
    restarts: Mapping[str, int]
    plan_errors: Mapping[str, float]
    wait_s: Mapping[str, float]
    overtakings: int
    restored_tokens: int
    document_pages: int
    cache: tuple[int, int, int]
    """Hits, misses, tokens reused."""
    tokens: Mapping[tuple[str, str], int]
    inference_s: Mapping[str, float]


async def show_metrics(request: web.Request) -> web.Response:
    """All families. Open unless `server.metrics_require_auth` is set."""
    options = request.app[OPTIONS]
    if options.metrics_need_key:
        find_key(request.headers.get(hdrs.AUTHORIZATION), options.keys)
    moment = moment_of(request.app)
    text = await asyncio.get_running_loop().run_in_executor(_THREAD, _text_of, moment)
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})


def _text_of(moment: Moment) -> bytes:
    return render([*families_of(moment)])


def moment_of(app: web.Application) -> Moment:
    """Copy what is to be told; takes a fraction of a millisecond."""
    accounts, lifecycle, runtime = app[ACCOUNTS], app[LIFECYCLE], app[RUNTIME]
    traffic, keys, log = accounts.traffic, accounts.keys, accounts.log.ring
    desk = app.get(DOWNLOADS)
    jobs = () if desk is None else desk.downloads.jobs()
    return Moment(
        view=runtime.memory(),
        version=app[OPTIONS].version,
        uptime_s=time.monotonic() - lifecycle.started_s,
        in_flight=len(lifecycle.running),
        event_readers=runtime.changes().readers,
        answers=dict(traffic.answers),
        times={route: Took(took.sum_ms, took.largest_ms) for route, took in traffic.times.items()},
        routes={name: Buckets.of(times) for name, times in accounts.latencies.routes.items()},
        workflows={name: Buckets.of(times) for name, times in accounts.latencies.workflows.items()},
        measured={name: Buckets.of(counted) for name, counted in accounts.measures.distributions.items()},
        key_requests=dict(keys.requests),
        key_rejections={label: keys.rejections[label] for label in keys.requests},
        key_tokens={label: keys.tokens[label] for label in keys.requests},
        key_tokens_today=keys.today(),
        sums=_sums_of(accounts),
        log_records=log.stored(),
        log_bytes=log.bytes,
        downloads=None if desk is None else Counter(job.state.value for job in jobs),
        download_bytes_per_s=sum(job.bytes_per_s or 0.0 for job in jobs),
    )


def _sums_of(accounts: Accounts) -> Sums:
    decided, measures = accounts.decided, accounts.measures
    return Sums(
        kinds=dict(decided.kinds),
        waits=dict(decided.waits),
        refused=decided.refused,
        loads=dict(decided.loads),
        load_failures=dict(decided.load_failures),
        evictions=dict(decided.evictions),
        deaths=dict(decided.deaths),
        restarts=dict(decided.restarts),
        plan_errors=dict(decided.plan_errors),
        wait_s=dict(measures.wait_s),
        overtakings=measures.overtakings,
        restored_tokens=measures.restored_tokens,
        document_pages=measures.document_pages,
        cache=(measures.cache_hits, measures.cache_misses, measures.cache_tokens),
        tokens=dict(measures.tokens),
        inference_s=dict(measures.inference_s),
    )


# --- families -------------------------------------------------------------------------------------------------------


def families_of(moment: Moment) -> Iterator[Family]:
    """Every family, with its help."""
    yield from _program(moment)
    yield from _http(moment)
    yield from _keys(moment)
    yield from _answers(moment)
    yield from _scheduler(moment.sums)
    yield from _models(moment)
    yield from _memory(moment.view)
    yield from _gpu(moment.view)
    yield from _parking(moment)
    yield from _downloads(moment)


@functools.cache
def _process_started_s() -> float:
    return psutil.Process().create_time()


def _program(moment: Moment) -> Iterator[Family]:
    yield by_name("gauge", "build_info", "The program's version.", "version", {moment.version: 1})
    yield single("gauge", "uptime_seconds", "Seconds since the server started.", moment.uptime_s)
    yield single("gauge", "process_start_time_seconds", "When the process began, Unix time.", _process_started_s())
    view = moment.view
    yield single("gauge", "process_memory_bytes", "Memory of Hypnos with all its workers.", view.process_bytes)
    cap = () if view.process_cap_bytes is None else (((), float(view.process_cap_bytes)),)
    yield Family("gauge", "process_memory_cap_bytes", "Most that hardware.max_process_memory_bytes allows.", cap)
    yield single("gauge", "request_log_records", "Calls that the request log holds.", moment.log_records)
    yield single("gauge", "request_log_bytes", "Memory that the request log takes, roughly.", moment.log_bytes)
    yield single("gauge", "event_readers", "Readers of /v1/memory/events.", moment.event_readers)


def _http(moment: Moment) -> Iterator[Family]:
    yield Family(
        "counter",
        "http_requests",
        "Answers by route and class of status; 4xx includes clients that left (499).",
        [*moment.answers.items()],
        ("route", "class"),
    )
    yield by_name(
        "untyped",
        "http_request_latency_ms_sum",
        "Milliseconds that all answers of a route took, refusals included.",
        "route",
        {route: took.sum_ms for route, took in moment.times.items()},
    )
    yield by_name(
        "gauge",
        "http_request_latency_ms_max",
        "Milliseconds that the slowest answer of a route took since the start.",
        "route",
        {route: took.largest_ms for route, took in moment.times.items()},
    )
    yield single("gauge", "http_requests_in_flight", "Requests that are being answered.", moment.in_flight)
    yield _histograms("request_e2e_ms", "Milliseconds to the last byte, refusals aside.", "route", moment.routes)
    yield _histograms(
        "workflow_e2e_ms", "Milliseconds of multi-step tasks (x-hypnos-workflow).", "workflow", moment.workflows
    )


def _histograms(name: str, about: str, label: str, found: Mapping[str, Buckets]) -> Family:
    return Family("histogram", name, about, labels=(label,), histograms=[((key,), one) for key, one in found.items()])


def _keys(moment: Moment) -> Iterator[Family]:
    rejected = "Requests of a key that one of its limits, or a right that it lacks, refused."
    today = "Tokens of a key in this UTC day, as far as the server has run in it."
    yield by_name("counter", "api_key_requests", "Requests by the key's label.", "key", moment.key_requests)
    yield by_name("counter", "api_key_rejections", rejected, "key", moment.key_rejections)
    yield by_name("counter", "api_key_tokens", "Prompt and completion tokens of a key.", "key", moment.key_tokens)
    yield by_name("gauge", "api_key_tokens_today", today, "key", moment.key_tokens_today)


def _answers(moment: Moment) -> Iterator[Family]:
    for measure, counted in moment.measured.items():
        yield Family("histogram", measure.value, _HELP[measure], histograms=(((), counted),))
    hits, misses, reused = moment.sums.cache
    yield single("counter", "prefix_cache_hits", "Chats whose prompt was partly in a cache.", hits)
    yield single("counter", "prefix_cache_misses", "Chats whose prompt was read from its first token on.", misses)
    yield single("counter", "prefix_cache_tokens_reused", "Tokens of prompts that were in a cache.", reused)
    yield single("counter", "document_pages", "Pages of converted documents.", moment.sums.document_pages)


def _scheduler(sums: Sums) -> Iterator[Family]:
    total = {name: sum(found.values()) for name, found in (("loads", sums.loads), ("evictions", sums.evictions))}
    failures = sum(sums.load_failures.values())
    yield single("counter", "scheduler_promotions", "Models brought to tier 1.", total["loads"])
    yield single("counter", "scheduler_evictions", "Models that left to make room for another.", total["evictions"])
    yield single("counter", "scheduler_load_failures", "Loads that failed.", failures)
    yield single("counter", "scheduler_admissions_rejected", "Requests refused before they began.", sums.refused)
    yield by_name("counter", "scheduler_decisions", "Decisions by kind.", "kind", sums.kinds)
    yield by_name("counter", "scheduler_waits", "Requests that were not granted at once, by why.", "reason", sums.waits)
    yield by_name(
        "counter",
        "request_wait_seconds",
        "Seconds that requests waited, for loads or in a queue.",
        "cause",
        sums.wait_s,
    )
    yield single(
        "counter",
        "scheduler_overtakings",
        "Times that a later request was served before one that waited.",
        sums.overtakings,
    )


def _models(moment: Moment) -> Iterator[Family]:
    models, sums = moment.view.models, moment.sums
    names = [model.spec.id for model in models]

    def counted(found: Mapping[str, float]) -> dict[str, float]:
        return {name: found.get(name, 0) for name in names}

    tiers = {model.spec.id: _TIERS[model.tier] for model in models}
    layers = {model.spec.id: model.placement.gpu_layers for model in models}
    leases = {model.spec.id: model.active_leases for model in models}
    served = {model.spec.id: model.requests_served for model in models}
    waiting = {model.spec.id: model.waiting for model in models}
    died = "Workers that ended by themselves."
    again = "Loads after a worker had died, or was ended because it had grown."
    error = "Error of the last plan as a fraction of what was measured; above 0 when it was too small."
    yield by_name("gauge", "model_tier", "1 = GPU memory, 2 = pinned RAM, 3 = disk.", "model", tiers)
    yield by_name("gauge", "model_gpu_layers", "Layers of the model in tier 1.", "model", layers)
    yield by_name("gauge", "model_active_leases", "Requests that hold the model.", "model", leases)
    yield by_name("gauge", "model_waiting_requests", "Requests in the model's queue.", "model", waiting)
    yield by_name("counter", "model_requests", "Requests that have held the model.", "model", served)
    yield by_name("counter", "model_loads", "Loads of the model that ended well.", "model", counted(sums.loads))
    failed = counted(sums.load_failures)
    yield by_name("counter", "model_load_failures", "Loads of the model that failed.", "model", failed)
    yield by_name("counter", "model_evictions", "Times the model made room.", "model", counted(sums.evictions))
    yield by_name("counter", "model_worker_deaths", died, "model", counted(sums.deaths))
    yield by_name("counter", "model_worker_restarts", again, "model", counted(sums.restarts))
    known = {name: sums.plan_errors[name] for name in names if name in sums.plan_errors}
    yield by_name("gauge", "model_plan_error_ratio", error, "model", known)
    present = set(names)
    yield Family(
        "counter",
        "model_tokens",
        "Tokens of the model's calls: prompt, of these cached, and completion.",
        [(labels, count) for labels, count in sums.tokens.items() if labels[0] in present],
        ("model", "kind"),
    )
    busy = {name: sums.inference_s[name] for name in names if name in sums.inference_s}
    yield by_name("counter", "model_inference_seconds", "Seconds that calls held the model.", "model", busy)


def _memory(view: MemoryView) -> Iterator[Family]:
    vram = {
        "budget": view.tier1_budget_bytes,
        "used": view.tier1_used_bytes,
        "free": max(0, view.tier1_budget_bytes - view.tier1_used_bytes),
        "real_free": view.tier1_real_free_bytes,
        "real_total": view.tier1_real_total_bytes,
        "unaccounted": view.tier1_unaccounted_bytes,
        "effective_free": view.tier1_effective_free_bytes,
    }
    pinned = {
        "budget": view.tier2_budget_bytes,
        "used": view.tier2_used_bytes,
        "free": max(0, view.tier2_budget_bytes - view.tier2_used_bytes),
    }
    yield by_name("gauge", "vram_bytes", "Tier 1: budget, booked, free, and what the device says.", "kind", vram)
    yield by_name("gauge", "pinned_ram_bytes", "Tier 2: budget, booked, free.", "kind", pinned)


def _gpu(view: MemoryView) -> Iterator[Family]:
    memory: list[tuple[Labels, float]] = []
    lost: list[tuple[Labels, float]] = []
    for number, device in enumerate(view.devices):
        place = (str(number), device.name)
        lost.append((place, device.lost))
        memory.append(((*place, "budget"), device.budget_bytes))
        memory.append(((*place, "used"), device.used_bytes))
        memory.append(((*place, "real_free"), device.real_free_bytes))
        memory.append(((*place, "real_total"), device.real_total_bytes))
    yield Family("gauge", "gpu_memory_bytes", "Memory of each accelerator.", memory, ("device", "name", "kind"))
    yield Family("gauge", "gpu_lost", "1 while an accelerator does not answer.", lost, ("device", "name"))
    gpu = view.gpu
    for name, about, figure in _GPU_FIGURES:
        value = None if gpu is None else figure(gpu)
        labelled = {} if gpu is None or value is None else {gpu.name: value}
        yield by_name("gauge", name, about, "name", labelled)


def _parking(moment: Moment) -> Iterator[Family]:
    parking = moment.view.parking
    parked = () if parking is None else parking.models
    held = sum(one.bytes for one in parked)
    tokens = sum(one.tokens for one in parked)
    most = 0 if parking is None or not parking.enabled else parking.max_bytes
    yield single("gauge", "kv_parked_bytes", "Memory of parked conversations.", held)
    yield single("gauge", "kv_parked_limit_bytes", "Most that may be parked; 0 while parking is off.", most)
    yield single("gauge", "kv_parked_conversations", "Parked conversations.", sum(one.slots for one in parked))
    yield single("gauge", "kv_parked_tokens", "Tokens of parked conversations.", tokens)
    yield single(
        "counter",
        "kv_restored_tokens",
        "Tokens of conversations that came back with a load.",
        moment.sums.restored_tokens,
    )


def _downloads(moment: Moment) -> Iterator[Family]:
    if moment.downloads is None:
        return
    jobs = {state.value: moment.downloads.get(state.value, 0) for state in JobState}
    yield by_name("gauge", "downloads", "Downloads that are known, by state.", "state", jobs)
    rate = "Bytes per second that all downloads bring at this moment."
    yield single("gauge", "download_bytes_per_second", rate, moment.download_bytes_per_s)
