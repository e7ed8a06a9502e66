"""`GET /metrics` on a real socket (contract §16): every family of the contract, what moves it, and who may read it."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hypnos_engine.catalog.downloads.ledger import Ledger
from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.catalog.downloads.queue import Downloads
from hypnos_engine.catalog.downloads.terms import Terms
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.domain.errors import ModelBusy
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.hardware.monitor import GpuSample
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Switch
from hypnos_engine.runtime.parking import Restored
from hypnos_engine.server.app import make_app
from hypnos_engine.server.downloads import DOWNLOADS, DownloadDesk
from hypnos_engine.telemetry.decided import Decided
from hypnos_engine.telemetry.latency import Latencies
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Script
from tests.server.running import ADMIN, KEYS, OPTIONS, USER, Running, chat_body, running

CHAT = "/v1/chat/completions"
PAGE = (Path(__file__).parents[2] / "docs" / "observing.md").read_text("utf-8")
CONTRACT = """
hypnos_http_requests_total{route,class} hypnos_http_request_latency_ms_sum hypnos_http_request_latency_ms_max
hypnos_chat_ttft_ms hypnos_chat_decode_tokens_per_s hypnos_chat_prefill_tokens_per_s
hypnos_prefix_cache_hits_total hypnos_prefix_cache_misses_total hypnos_prefix_cache_tokens_reused_total
hypnos_tts_rtf hypnos_tts_ttfa_ms hypnos_stt_rtf hypnos_image_jct_s hypnos_document_ms_per_page
hypnos_document_pages_total hypnos_scheduler_promotions_total hypnos_scheduler_evictions_total
hypnos_scheduler_load_failures_total hypnos_scheduler_admissions_rejected_total
hypnos_model_load_failures_total{model} hypnos_model_tier{model} hypnos_model_gpu_layers{model}
hypnos_model_active_leases{model} hypnos_model_requests_total{model} hypnos_vram_bytes{kind}
hypnos_pinned_ram_bytes{kind} hypnos_api_key_requests_total{key} hypnos_api_key_rejections_total{key}
hypnos_api_key_tokens_total{key} hypnos_api_key_tokens_today{key} hypnos_uptime_seconds
hypnos_process_start_time_seconds hypnos_workflow_e2e_ms hypnos_request_e2e_ms hypnos_gpu_memory_bytes
"""
"""Of [§16-03] to [§16-25]; of the `hypnos_gpu_*` family one."""
TIMING = m.EngineTiming(ttft_ms=40.0, decode_tokens_per_s=55.5, prefill_tokens_per_s=900.0)
LOADED = Switch(Tier.DISK, 1200.0, None, (), 1500.0, None, Restored(3.0, 70), overtaken=2)


def key(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def scrape(server: Running) -> str:
    async with server.http.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4"  # [§16-01]
        return await response.text()


def families(text: str) -> dict[str, Metric]:
    """As Prometheus's own parser reads them, by the name of the HELP line."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text: str) -> dict[str, float]:
    """Every sample, as `name{label=value,...}`."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.mark.parametrize("wanted", CONTRACT.split())
async def test_every_family_of_the_contract_is_there_with_help_and_labels(wanted: str) -> None:
    """[§16-03..26]."""
    name, _, labels = wanted.rstrip("}").partition("{")
    async with running(keys=KEYS) as server:
        async with server.http.post(CHAT, json=chat_body(), headers=key(USER)) as response:
            assert response.status == 200
        text = await scrape(server)
    assert re.search(rf"^# HELP {name} \w.*$", text, re.MULTILINE)
    assert re.search(rf"^# TYPE {name} \w+$", text, re.MULTILINE)
    if labels:
        (sample, *_) = re.findall(rf"^{name}{{(.*)}}", text, re.MULTILINE)
        assert set(re.findall(r"(\w+)=", sample)) == set(labels.split(","))


async def test_what_a_chat_moves(loop_factory: LoopFactory) -> None:
    script = Script(timing=TIMING, switch=LOADED, cached_tokens=3)
    async with running(FakeRuntime(fake=script)) as server:
        await server.chat()
        async with server.http.post(CHAT, json=chat_body(stream=True)) as response:
            await response.read()
        found = values(await scrape(server))
    assert found["hypnos_http_requests_total{class=2xx,route=/v1/chat/completions}"] == 2
    assert found["hypnos_http_request_latency_ms_sum{route=/v1/chat/completions}"] > 0
    assert found["hypnos_request_e2e_ms_count{route=/v1/chat/completions}"] == 2
    assert found["hypnos_chat_ttft_ms_count"] == 2
    assert found["hypnos_chat_ttft_ms_sum"] == 2 * 1540
    assert found["hypnos_chat_ttft_ms_bucket{le=2000.0}"] == 2
    assert found["hypnos_chat_ttft_ms_bucket{le=1500.0}"] == 0
    assert found["hypnos_chat_decode_tokens_per_s_sum"] == 111
    assert found["hypnos_chat_prefill_tokens_per_s_sum"] == 1800
    assert (found["hypnos_prefix_cache_hits_total"], found["hypnos_prefix_cache_misses_total"]) == (2, 0)
    assert found["hypnos_prefix_cache_tokens_reused_total"] == 6
    assert found["hypnos_request_wait_seconds_total{cause=load}"] == pytest.approx(2.4)
    assert found["hypnos_request_wait_seconds_total{cause=queue}"] == pytest.approx(0.6)
    assert found["hypnos_scheduler_overtakings_total"] == 4
    assert found["hypnos_kv_restored_tokens_total"] == 140
    assert found["hypnos_model_tokens_total{kind=prompt,model=fake}"] == 14
    assert found["hypnos_model_tokens_total{kind=cached,model=fake}"] == 6
    assert found["hypnos_model_tokens_total{kind=completion,model=fake}"] == 6
    assert found["hypnos_api_key_tokens_total{key=local}"] == found["hypnos_api_key_tokens_today{key=local}"] == 20
    assert found["hypnos_model_tier{model=fake}"] == 1
    assert found["hypnos_model_gpu_layers{model=fake}"] == 30
    assert found["hypnos_vram_bytes{kind=budget}"] == 12 * 1024**3
    assert found["hypnos_http_requests_in_flight"] == 1


async def test_what_decisions_move() -> None:
    """[§16-13] [§16-14] [§16-15]: and beyond it waits by reason, estimates and restarts."""
    decided = Decided()
    runtime = FakeRuntime()
    async with running(runtime, app=make_app(runtime, OPTIONS, decided=decided)) as server:
        for kind, numbers, reason in (
            ("load_failed", (), ""),
            ("loaded", (("plan_error", -0.02),), ""),
            ("worker_died", (), ""),
            ("loaded", (("plan_error", 0.05),), ""),
            ("evict", (), ""),
            ("refuse", (("requests", 3),), ""),
            ("refuse", (), ""),
            ("wait", (), "slots"),
        ):
            decided.record(kind, "fake", numbers, reason)
        found = values(await scrape(server))
    assert found["hypnos_scheduler_promotions_total"] == found["hypnos_model_loads_total{model=fake}"] == 2
    assert found["hypnos_scheduler_evictions_total"] == 1
    assert found["hypnos_scheduler_load_failures_total"] == found["hypnos_model_load_failures_total{model=fake}"] == 1
    assert found["hypnos_scheduler_admissions_rejected_total"] == 4
    assert found["hypnos_scheduler_decisions_total{kind=loaded}"] == 2
    assert found["hypnos_scheduler_waits_total{reason=slots}"] == 1
    assert found["hypnos_model_plan_error_ratio{model=fake}"] == 0.05
    assert found["hypnos_model_worker_deaths_total{model=fake}"] == 1
    assert found["hypnos_model_worker_restarts_total{model=fake}"] == 1


async def test_nothing_that_a_client_wrote_becomes_a_label() -> None:
    """Whatever is asked for, the number of series stays the same."""
    async with running(FakeRuntime(fake=Script(), full=Script(refuse=ModelBusy("full"))), keys=KEYS) as server:

        async def noise(number: int) -> None:
            for path in (f"/nothing/{number}", f"/v1/logs/req-{number}", f"/v1/models/none-{number}"):
                async with server.http.get(path, headers=key(USER)) as response:
                    await response.read()
            for secret, model in (
                (USER, f"none-{number}"),
                (USER, "full"),
                (f"wrong-{number}", "fake"),
                (USER, "fake"),
            ):
                async with server.http.post(CHAT, json=chat_body(model=model), headers=key(secret)) as response:
                    await response.read()

        await noise(0)
        await scrape(server)
        before = set(values(await scrape(server)))
        for number in range(1, 20):
            await noise(number)
        after = values(await scrape(server))
    assert set(after) == before
    assert after["hypnos_http_requests_total{class=4xx,route=other}"] == 20
    assert "hypnos_api_key_requests_total{key=local}" not in after
    assert after["hypnos_http_requests_total{class=4xx,route=/v1/chat/completions}"] == 60


async def test_rejections_are_counted_by_key() -> None:
    async with running(keys=KEYS) as server:
        async with server.http.post("/v1/memory/restore", headers=key(USER)) as response:
            assert response.status == 403
        async with server.http.post("/v1/memory/restore", headers=key(ADMIN)) as response:
            assert response.status == 200
        found = values(await scrape(server))
    assert found["hypnos_api_key_rejections_total{key=user}"] == 1
    assert found["hypnos_api_key_rejections_total{key=admin}"] == 0
    assert found["hypnos_api_key_requests_total{key=admin}"] == 1


@pytest.mark.parametrize("closed", [False, True])
async def test_it_is_open_unless_it_is_closed(*, closed: bool) -> None:
    """[§16-02] [§2-08]."""
    text = ""
    async with running(keys=KEYS, metrics_need_key=closed) as server:
        for headers, status in (({}, 401 if closed else 200), (key("no"), 401 if closed else 200), (key(USER), 200)):
            async with server.http.get("/metrics", headers=headers) as response:
                assert response.status == status
                assert ("WWW-Authenticate" in response.headers) == (status == 401)
                text += await response.text()
    assert USER not in text
    assert ADMIN not in text


async def test_workflows_and_devices_are_told() -> None:
    """[§16-21] [§16-25]."""
    latencies, runtime = Latencies(), FakeRuntime()
    runtime.gpu = GpuSample("Fake GPU", 37, 61, 120.5, 1500, 0, 0, False, 1)
    async with running(runtime, app=make_app(runtime, OPTIONS, latencies=latencies)) as server:
        latencies.workflow_ended("voice_turn", 0.9)
        found = values(await scrape(server))
    assert found["hypnos_workflow_e2e_ms_bucket{le=1000.0,workflow=voice_turn}"] == 1
    assert found["hypnos_workflow_e2e_ms_bucket{le=700.0,workflow=voice_turn}"] == 0
    assert found["hypnos_gpu_utilization_percent{name=Fake GPU}"] == 37
    assert found["hypnos_gpu_throttled{name=Fake GPU}"] == 0
    assert found["hypnos_gpu_memory_bytes{device=0,kind=real_total,name=Fake GPU}"] == 16 * 1024**3


async def test_downloads_are_told_where_there_are_any(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    app = make_app(runtime, OPTIONS)
    downloads = Downloads(Ledger(tmp_path), Terms((tmp_path,), Network("http://127.0.0.1:9", None, None)))
    app[DOWNLOADS] = DownloadDesk(downloads, Shelf([]))
    async with running(runtime, app=app) as server:
        found = values(await scrape(server))
    assert found["hypnos_downloads{state=running}"] == 0
    assert found["hypnos_download_bytes_per_second"] == 0


async def test_many_readers_at_once_get_the_same_families() -> None:
    async with running() as server:
        texts = await asyncio.gather(*(scrape(server) for _ in range(8)))
    assert all(families(text).keys() == families(texts[0]).keys() for text in texts)


async def test_the_page_lists_every_family_and_no_other(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    app = make_app(runtime, replace(OPTIONS))
    terms = Terms((tmp_path,), Network("http://127.0.0.1:9", None, None))
    app[DOWNLOADS] = DownloadDesk(Downloads(Ledger(tmp_path), terms), Shelf([]))
    async with running(runtime, app=app) as server:
        told = set(re.findall(r"^# HELP (\w+)", await scrape(server), re.MULTILINE))
    rows = [line for line in PAGE.splitlines() if line.startswith("| `hypnos_")]
    assert {name for row in rows for name in re.findall(r"`(hypnos_\w+)`", row)} == told
