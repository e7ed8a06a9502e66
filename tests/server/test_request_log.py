"""The request log on real sockets (contract §15): what is kept, who sees it, and what never is in it."""

import asyncio
import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any

import msgspec
import pytest

from hypnos_engine.config.choices import LogLevel
from hypnos_engine.domain.errors import EngineFailed, ModelBusy, WorkerDied
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.ipc import messages as m
from hypnos_engine.runtime.lease import Switch
from hypnos_engine.server.app import make_app
from hypnos_engine.server.options import AccessKey, LogTerms, ServerOptions
from hypnos_engine.server.redacting import BLANK
from hypnos_engine.server.request_log import REQUEST_LOG
from hypnos_engine.telemetry.tape import MOST_BYTES
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Gate, Script
from tests.server.running import ADMIN, KEYS, OPTIONS, USER, Running, chat_body, chat_bytes, running

CHAT = "/v1/chat/completions"
FIELDS = {"id", "route", "method", "status", "key", "started_at", "duration_ms", "model", "stream", "tokens_in",
          "tokens_out", "cached_tokens", "tokens_per_s", "inference_ms", "tier_switch_ms", "previous_tier", "error",
          "level", "truncated"}  # fmt: skip
TEXTS = ("input", "output", "request_payload", "response_payload")
TIMING = m.EngineTiming(ttft_ms=40.0, decode_tokens_per_s=55.5, prefill_tokens_per_s=900.0)
LOADED = Switch(Tier.DISK, 1200.0, None, (), 1500.0, None, overtaken=2)


def authorized(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def log(server: Running, query: str = "", key: str = ADMIN) -> Any:
    async with server.http.get(f"/v1/logs{query}", headers=authorized(key)) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def records(server: Running, query: str = "", key: str = ADMIN) -> list[Any]:
    found: list[Any] = (await log(server, query, key))["records"]
    return found


async def ask(server: Running, key: str = ADMIN, **fields: Any) -> tuple[int, str, bytes]:
    """Status, id and body of one call."""
    async with server.http.post(CHAT, json=chat_body(**fields), headers=authorized(key)) as response:
        return response.status, response.headers["x-request-id"], await response.read()


async def set_level(server: Running, level: str) -> None:
    async with server.http.post("/v1/logs/level", json={"level": level}, headers=authorized(ADMIN)) as response:
        assert await response.json() == {"level": level}  # [§15-11]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_leaves_a_record_under_its_request_id(loop_factory: LoopFactory, *, stream: bool) -> None:
    """[§15-07] [§15-13..19] [§1.2-03]: with what it took and what it used."""
    script = Script(timing=TIMING, switch=LOADED, cached_tokens=3)
    async with running(FakeRuntime(fake=script)) as server:
        _, name, _ = await ask(server, stream=stream)
        (listed,) = await records(server)
        async with server.http.get(f"/v1/logs/{name}") as response:
            record = await response.json()
    assert listed == record
    assert set(record) >= FIELDS
    assert record["id"] == name
    assert (record["route"], record["method"], record["status"], record["key"]) == (CHAT, "POST", 200, "local")
    assert datetime.fromisoformat(record["started_at"]).utcoffset() == timedelta(0)
    assert (record["model"], record["stream"]) == ("fake", stream)
    assert (record["tokens_in"], record["tokens_out"], record["cached_tokens"]) == (7, 3, 3)
    assert (record["tokens_per_s"], record["tier_switch_ms"], record["waited_ms"]) == (55.5, 1200.0, 1500.0)
    assert record["previous_tier"] == "tier3_nvme_ssd"
    assert 0 <= record["inference_ms"] <= record["duration_ms"]
    assert (record["error"], record["level"], record["truncated"]) == (None, "info", False)
    assert not set(TEXTS) & set(record)  # [§15-23]


async def test_newest_come_first_and_the_oldest_go() -> None:
    """[§15-01] [§15-05] [§15-06]."""
    async with running(request_log=LogTerms(entries=3)) as server:
        names = [(await ask(server))[1] for _ in range(5)]
        found = await log(server)
        async with server.http.get(f"/v1/logs/{names[0]}") as response:
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "not_found"  # [§15-08]
    assert (found["level"], found["capacity"], found["stored"]) == ("info", 3, 3)
    assert [record["id"] for record in found["records"]] == names[:1:-1]


async def test_only_calls_of_models_are_recorded() -> None:
    """[§15-03] [§15-24]."""
    async with running() as server:
        for path in ("/health", "/v1/models", "/v1/memory/status", "/v1/logs", "/v1/logs/none", "/metrics", "/v1/no"):
            async with server.http.get(path) as response:
                await response.read()
        assert await records(server) == []


async def test_the_filters() -> None:
    """[§15-04]."""
    runtime = FakeRuntime(
        fake=Script(), other=Script(), full=Script(refuse=ModelBusy("full")), ill=Script(reject=EngineFailed("ill")),
        dying=Script(fail=WorkerDied("gone"))
    )  # fmt: skip
    async with running(runtime) as server:
        for model in ("fake", "other", "full", "ill"):
            await ask(server, model=model)
        await ask(server, model="dying", stream=True)

        async def models(query: str) -> list[str]:
            return [record["model"] for record in await records(server, query)]

        assert await models("?model=other") == ["other"]
        assert await models(f"?route={CHAT}&limit=2") == ["dying", "ill"]
        assert await models("?route=/v1/embeddings") == []
        assert await models("?status=ok") == ["other", "fake"]
        assert await models("?status=error") == ["dying", "ill", "full"]
        assert await models("?status=4xx") == ["full"]
        assert await models("?status=5xx") == ["ill"]
        assert await models("?key=local&limit=1") == ["dying"]
        assert await models("?key=somebody") == []
        for wrong in ("?status=6xx", "?limit=0", "?limit=x", "?limit=-1"):
            async with server.http.get(f"/v1/logs{wrong}") as response:
                assert response.status == 400


async def test_a_failure_midway_keeps_its_status_and_has_an_error() -> None:
    async with running(FakeRuntime(fake=Script(fail=WorkerDied("The worker is gone.")))) as server:
        await ask(server, stream=True)
        (record,) = await records(server)
    assert (record["status"], record["error"], record["error_type"]) == (200, "The worker is gone.", "server_error")


async def test_a_client_that_left_is_recorded_as_499(loop_factory: LoopFactory) -> None:
    """[§4-25]."""
    gate = Gate()
    runtime = FakeRuntime(fake=Script(gates={1: gate}))
    async with running(runtime) as server:
        async with server.raw(chat_bytes(stream=True)) as (reader, _):
            await gate.reached.wait()
            await reader.readline()
        await runtime.until(lambda: runtime.idle)
        async with asyncio.timeout(30):
            while not (found := await records(server)):
                pass
    (record,) = found
    assert (record["status"], record["error_type"], record["model"]) == (499, "cancelled", "fake")


@pytest.mark.parametrize(
    ("level", "models"),
    [
        ("off", []),
        ("error", ["dying", "ill"]),
        ("warn", ["dying", "ill", "full"]),
        ("info", ["dying", "ill", "full", "fake"]),
    ],
)
async def test_a_level_decides_which_of_the_next_calls_are_kept(level: str, models: list[str]) -> None:
    """[§15-10] [§15-12]."""
    runtime = FakeRuntime(
        fake=Script(), full=Script(refuse=ModelBusy("full")), ill=Script(reject=EngineFailed("ill")),
        dying=Script(fail=WorkerDied("gone"))
    )  # fmt: skip
    async with running(runtime) as server:
        _, before, _ = await ask(server)
        await set_level(server, level)
        for model in ("fake", "full", "ill"):
            await ask(server, model=model)
        await ask(server, model="dying", stream=True)
        found = await log(server)
    assert found["level"] == level
    assert [record["model"] for record in found["records"]] == [*models, "fake"]
    assert found["records"][-1]["id"] == before
    assert found["records"][-1]["level"] == "info"


async def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    async with running() as server, server.http.post("/v1/logs/level", json={"level": "loud"}) as response:
        assert response.status == 400
        message = (await response.json())["error"]["message"]
    assert all(level in message for level in LogLevel)


@pytest.mark.parametrize("stream", [False, True])
async def test_texts_from_debug_on_and_bodies_at_trace(loop_factory: LoopFactory, *, stream: bool) -> None:
    """[§15-20] [§15-21]."""
    async with running(FakeRuntime(fake=Script(thoughts=("hm ",)))) as server:
        await set_level(server, "debug")
        await ask(server, stream=stream, think=True)
        await set_level(server, "trace")
        _, _, body = await ask(server, stream=stream, think=True)
        trace, debug = await records(server)
    assert (debug["input"], debug["output"]) == ("user: Hi\n", "hm Hello, world")
    assert "request_payload" not in debug
    assert "response_payload" not in debug
    assert (trace["input"], trace["output"]) == (debug["input"], debug["output"])
    assert '"think": true' in trace["request_payload"]
    assert trace["response_payload"] == body.decode()
    assert not trace["truncated"]


async def test_a_refusal_repeats_what_a_client_wrote_from_debug_on_only() -> None:
    """[§15-23]."""
    wrong = [{"role": "SECRET-ROLE", "content": "SECRET-TEXT"}]
    async with running() as server:
        await ask(server, messages=wrong)
        async with server.http.get("/v1/logs") as response:
            plain = await response.text()
        await set_level(server, "trace")
        await ask(server, messages=wrong)
        (record, _) = await records(server)
    assert "SECRET" not in plain
    assert "SECRET-ROLE" in record["error"]
    assert "SECRET-TEXT" in record["request_payload"]


async def test_long_texts_are_cut_between_characters() -> None:
    """[§15-19] `truncated`: also for a body that lies in a file."""
    body = BytesIO(msgspec.json.encode(chat_body(messages=[{"role": "user", "content": "ä" * 700_000}])))
    runtime, terms = FakeRuntime(fake=Script(pieces=("ü" * 50_000,))), LogTerms(level=LogLevel.TRACE)
    async with running(runtime, request_log=terms) as server:
        async with server.http.post(CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
            assert response.status == 200
        (record,) = await records(server)
    assert record["truncated"]
    for name in TEXTS:
        assert len(record[name].encode()) <= MOST_BYTES
    assert record["output"] == "ü" * (MOST_BYTES // 2)


async def test_everything_is_bounded_in_bytes_too() -> None:
    terms = LogTerms(entries=100_000, max_bytes=300_000, level=LogLevel.TRACE)
    app = make_app(runtime := FakeRuntime(fake=Script(pieces=("x" * 50_000,))), _options(terms))
    async with running(runtime, app=app) as server:
        for _ in range(12):
            await ask(server)
        found = await log(server)
        ring, captured = app[REQUEST_LOG].ring, app[REQUEST_LOG].captured_bytes
    assert 0 < found["stored"] == len(found["records"]) < 5
    assert ring.bytes <= 300_000
    assert captured == 0


async def test_calls_under_way_share_a_bound(loop_factory: LoopFactory) -> None:
    gates = [Gate() for _ in range(3)]
    scripts = {f"m{n}": Script(pieces=("x" * 40_000,), before_end=gate) for n, gate in enumerate(gates)}
    terms = LogTerms(max_bytes=100_000, level=LogLevel.DEBUG)
    app = make_app(runtime := FakeRuntime(**scripts), _options(terms))
    async with running(runtime, app=app) as server:
        asking = [asyncio.create_task(ask(server, model=name, stream=True)) for name in scripts]
        for gate in gates:
            await gate.reached.wait()
        assert app[REQUEST_LOG].captured_bytes <= 100_000
        for gate in gates:
            gate.opened.set()
        await asyncio.gather(*asking)
        assert app[REQUEST_LOG].captured_bytes == 0
        assert sorted(record["truncated"] for record in await records(server)) == [False, False, True]


async def test_a_log_longer_than_one_part_is_sent_whole(loop_factory: LoopFactory) -> None:
    terms = LogTerms(level=LogLevel.TRACE)
    async with running(FakeRuntime(fake=Script(pieces=("x" * 60_000,))), request_log=terms) as server:
        names = [(await ask(server))[1] for _ in range(20)]
        found = await log(server)
        assert [record["id"] for record in found["records"]] == names[::-1]
        assert [record["id"] for record in await records(server, "?limit=13")] == names[:-14:-1]
        async with server.http.head("/v1/logs") as response:
            assert response.status == 200


async def test_blanking_everything_keeps_no_text() -> None:
    """[§15-22]."""
    async with running(request_log=LogTerms(level=LogLevel.TRACE, blank=True)) as server:
        await ask(server, messages=[{"role": "user", "content": "MINE"}])
        await ask(server, messages=[{"role": "MINE", "content": "MINE"}])
        async with server.http.get("/v1/logs") as response:
            text = await response.text()
        refused, answered = await records(server)
    assert "MINE" not in text
    assert {answered[name] for name in TEXTS} == {BLANK}
    assert refused["error"] == BLANK


async def test_patterns_blank_what_they_find_in_every_text(loop_factory: LoopFactory) -> None:
    """[§15-22]."""
    terms = LogTerms(level=LogLevel.TRACE, patterns=(r"[\w.]+@[\w.]+", r"wor.d", r"x*"))
    async with running(request_log=terms) as server:
        await ask(server, messages=[{"role": "user", "content": "Write to ada@example.org, xx"}])
        (record,) = await records(server)
    assert record["input"] == f"user: Write to {BLANK}, {BLANK}\n"
    assert record["output"] == f"Hello, {BLANK}"
    assert "ada@" not in record["request_payload"]
    assert "world" not in record["response_payload"]


async def test_what_is_being_looked_through_is_cleared_as_well(loop_factory: LoopFactory) -> None:
    terms = LogTerms(level=LogLevel.DEBUG, patterns=("secret",))
    app = make_app(runtime := FakeRuntime(), _options(terms))
    async with running(runtime, app=app) as server:
        await ask(server)
        async with server.http.delete("/v1/logs") as response:
            assert await response.json() == {"cleared": True}  # [§15-09]
        assert await records(server) == []


async def test_a_key_that_is_not_admin_sees_and_empties_its_own_calls(loop_factory: LoopFactory) -> None:
    """[§2-31] [§15-14]."""
    async with running(keys=KEYS) as server:
        _, of_admin, _ = await ask(server, ADMIN)
        _, of_user, _ = await ask(server, USER)
        assert [(one["id"], one["key"]) for one in await records(server)] == [(of_user, "user"), (of_admin, "admin")]
        own = await log(server, key=USER)
        assert (own["stored"], [one["id"] for one in own["records"]]) == (1, [of_user])
        assert await records(server, "?key=admin", key=USER) == []
        assert [one["id"] for one in await records(server, "?key=user")] == [of_user]
        for name, status in ((of_user, 200), (of_admin, 404)):
            async with server.http.get(f"/v1/logs/{name}", headers=authorized(USER)) as response:
                assert response.status == status
        async with server.http.delete("/v1/logs", headers=authorized(USER)) as response:
            assert response.status == 200
        assert [one["id"] for one in await records(server)] == [of_admin]


@pytest.mark.parametrize("level", list(LogLevel))
async def test_no_key_is_ever_in_it(level: LogLevel) -> None:
    """[§2-33]: not even one that its owner wrote into a prompt, nor a wrong one."""
    secret = "sk-5f1e0c2d9b"
    keys = (*KEYS, AccessKey("own", hashlib.sha256(secret.encode()).hexdigest()))
    async with running(keys=keys, request_log=LogTerms(level=level)) as server:
        await ask(server, secret, messages=[{"role": "user", "content": f"my key is {secret}"}], stream=True)
        await ask(server, secret, messages=[{"role": secret, "content": "x"}])
        await ask(server, secret, model=f"no {secret}")
        assert (await ask(server, "sk-wrong-9911"))[0] == 401
        async with server.http.get("/v1/logs", headers=authorized(ADMIN)) as response:
            text = await response.text()
    assert secret not in text
    assert "sk-wrong" not in text
    assert '"status":401' not in text


async def test_it_works_while_models_are_staged() -> None:
    """[§15-02] [§3-09]: the calls that were refused meanwhile are in it."""
    runtime = FakeRuntime()
    runtime.staging = True
    async with running(runtime) as server:
        assert (await ask(server))[0] == 503
        await set_level(server, "warn")
        (record,) = await records(server)
        async with server.http.delete("/v1/logs") as response:
            assert response.status == 200
    assert (record["status"], record["error_type"]) == (503, "model_not_available")


async def test_without_entries_nothing_is_kept() -> None:
    async with running(request_log=LogTerms(entries=0, level=LogLevel.TRACE)) as server:
        await ask(server)
        assert (await log(server))["records"] == []


def _options(terms: LogTerms) -> ServerOptions:
    return replace(OPTIONS, request_log=terms)
