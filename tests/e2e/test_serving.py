"""The program as its users meet it: a real process, the real starter model, the official SDK."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e.engine_process import RunningEngine, private_environment, serving

pytestmark = pytest.mark.starter

MODEL = "smollm2:135m"
GRAVITY = [{"role": "user", "content": "What is gravity? Answer in one sentence."}]
STORY = [{"role": "user", "content": "Tell me a very long story about the sea, with many details."}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("home mit Ümläut 🌙")) as running:
        yield running


def sdk(engine: RunningEngine, retries: int = 0) -> Any:
    """The official client, unchanged; its overloads are looser than these tests need."""
    return openai.OpenAI(base_url=f"{engine.address}/v1", api_key="anything", max_retries=retries)


def test_a_first_start_writes_a_configuration_and_serves_the_starter_model(engine: RunningEngine) -> None:
    config = engine.home / "config" / "hypnos" / "hypnos.toml"
    assert MODEL in config.read_text(encoding="utf-8")
    assert config.stat().st_mode & 0o077 == 0
    assert [model["id"] for model in engine.get("/v1/models")["data"]] == [MODEL]


def test_the_sdk_lists_chats_and_streams_unchanged(engine: RunningEngine) -> None:
    """§17-25"""
    with sdk(engine) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        answer = client.chat.completions.create(model=MODEL, messages=GRAVITY, max_tokens=24, temperature=0, seed=1)
        assert "force" in answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        stream = client.chat.completions.create(
            model=MODEL, messages=GRAVITY, max_tokens=24, temperature=0, seed=1, stream=True
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == answer.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason
        assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_sampling_with_a_seed_gives_the_same_text_streamed_or_not(engine: RunningEngine) -> None:
    """§7.1-15"""
    asked = {"model": MODEL, "messages": STORY, "max_tokens": 40, "seed": 7, "temperature": 1.0}
    with sdk(engine) as client:
        whole = [client.chat.completions.create(**asked).choices[0].message.content for _ in range(2)]
        pieces = client.chat.completions.create(**asked, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert whole == [streamed, streamed]


def test_measured_telemetry_comes_with_every_answer(engine: RunningEngine) -> None:
    """§5"""
    with sdk(engine) as client:
        answer = client.chat.completions.create(model=MODEL, messages=GRAVITY, max_tokens=8)
    telemetry = answer.model_extra["hypnos_telemetry"] if answer.model_extra else {}
    assert telemetry["previous_tier"] == "tier1_gpu_vram"
    assert telemetry["tier_switch_latency_ms"] == 0
    assert telemetry["placement"]["allocated_context_len"] == 8192
    timing = telemetry["engine"]
    assert timing["ttft_ms"] > 0
    assert timing["decode_tokens_per_s"] > 0
    assert telemetry["inference_latency_ms"] >= timing["decode_ms"]


def test_a_prompt_that_fits_no_window_is_refused_with_both_numbers(engine: RunningEngine) -> None:
    long = [{"role": "user", "content": "word " * 20_000}]
    with sdk(engine) as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=long)
    assert "8192" in refused.value.message
    assert "200" in refused.value.message


def test_32_streams_over_4_slots_each_get_their_own_answer_or_a_typed_429(engine: RunningEngine) -> None:
    """§7.3, A-13"""
    with sdk(engine) as client:

        def one(number: int) -> str:
            content = f"Repeat this number and nothing else: {number}"
            try:
                stream = client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": content}],
                    max_tokens=12,
                    temperature=0,
                    stream=True,
                )
                chunks = list(stream)
            except openai.RateLimitError as busy:
                return f"refused: {busy.type}"
            assert chunks[-1].choices[0].finish_reason in ("stop", "length")
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(one, range(100, 132)))
    served = [answer for answer in answers if answer != "refused: model_busy"]
    assert not any(answer.startswith("refused") for answer in served)
    assert len(served) >= 8
    assert all(served)
    entry = engine.get(f"/v1/models/{MODEL}")
    assert entry["active_leases"] == 0


def test_clients_that_vanish_leave_nothing_behind(engine: RunningEngine) -> None:
    """§7.4-25, §7.4-26"""
    process = psutil.Process(engine.process.pid)
    _vanish(engine, 6)
    _until_idle(engine)
    engine.wait_spare()
    before = _holdings(process)
    _vanish(engine, 40)
    _until_idle(engine)
    more: dict[str, int] = {}
    for _ in range(2000):  # the last connections close a moment after their requests ended
        more = {what: count for what, count in _holdings(process).items() if count > before[what]}
        if not more:
            break
        engine.get("/health")
    assert not more, f"more than {before}: {more}"
    with sdk(engine) as client:
        assert client.chat.completions.create(model=MODEL, messages=GRAVITY, max_tokens=4).choices


def _holdings(process: psutil.Process) -> dict[str, int]:
    return {
        "descriptors": process.num_fds(),
        "children": len(process.children(recursive=True)),
        "threads": process.num_threads(),
    }


def _vanish(engine: RunningEngine, times: int) -> None:
    """Clients that leave before, at and after the first bytes of their streams."""
    body = json.dumps({"model": MODEL, "messages": STORY, "max_tokens": 400, "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    for number in range(times):
        with socket.create_connection(("127.0.0.1", engine.port)) as client:
            if number % 4 == 0:
                client.sendall(head + body[: number % len(body)])
                continue
            client.sendall(head + body)
            if number % 4 > 1:
                client.recv(64 * (number % 4))


def _until_idle(engine: RunningEngine) -> None:
    for _ in range(2000):
        if engine.get(f"/v1/models/{MODEL}")["active_leases"] == 0:
            status = engine.get("/v1/memory/status")
            if status["models"][0]["active_leases"] == 0:
                return
    raise AssertionError("a lease was left behind")


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGABRT])
def test_a_worker_killed_mid_stream_gives_the_error_chunk_and_the_next_request_works(
    engine: RunningEngine, with_signal: signal.Signals
) -> None:
    """§7.4-21 to §7.4-24"""
    with sdk(engine) as client:
        raw = client.chat.completions.with_streaming_response.create(
            model=MODEL,
            messages=STORY,
            max_tokens=400,
            stream=True,
        )
        with raw as response:
            assert response.status_code == 200
            events = (line for line in response.iter_lines() if line)
            for _ in range(3):
                next(events)
            (worker,) = engine.workers()
            worker.send_signal(with_signal)
            *_, last, done = events
        assert done == "data: [DONE]"
        chunk = json.loads(last.removeprefix("data: "))
        assert chunk["choices"][0]["finish_reason"] == "error"
        assert chunk["error"]["type"] == "server_error"
        assert MODEL in chunk["error"]["message"]
        answer = client.chat.completions.create(model=MODEL, messages=GRAVITY, max_tokens=8)
        assert answer.choices[0].message.content
        assert answer.model_extra is not None
        assert answer.model_extra["hypnos_telemetry"]["tier_switch_phases"]["load_mode"] == "mmap"


def test_sigterm_lets_a_running_stream_end_and_leaves_no_worker(tmp_path: Path) -> None:
    with serving(tmp_path) as engine, sdk(engine) as client:
        engine.wait_spare()
        workers = engine.worker_processes()
        stream = client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=60, stream=True)
        next(stream)
        engine.process.send_signal(signal.SIGTERM)
        *_, last = stream
        assert last.choices[0].finish_reason in ("stop", "length")
        assert engine.process.wait(timeout=30) == 0
        assert not any(worker.is_running() for worker in workers)


def test_sigkill_of_the_server_leaves_no_worker(tmp_path: Path) -> None:
    with serving(tmp_path) as engine:
        engine.wait_spare()
        workers = engine.worker_processes()
        assert len(engine.workers()) == 1
        engine.end(signal.SIGKILL)
        _, left = psutil.wait_procs(workers, timeout=10)
        assert not left


def test_damaged_files_are_typed_errors_that_name_the_file(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "garbage.gguf").write_bytes(os.urandom(4096))
    (models / "short.gguf").write_bytes(_starter().read_bytes()[:50_000])
    config = tmp_path / "hypnos.toml"
    blocks = "".join(
        f'[[models]]\nid = "{name}"\nmodality = "text_generation"\nengine = "ggml_llama"\n'
        f'weights_path = "{name}.gguf"\n'
        for name in ("garbage", "short", "absent")
    )
    config.write_text(f'config_version = 1\nmodels_dir = "{models}"\n{blocks}', encoding="utf-8")
    with serving(tmp_path / "home", "--config", str(config)) as engine, sdk(engine) as client:
        for name in ("garbage", "short"):
            with pytest.raises(openai.InternalServerError) as failed:
                client.chat.completions.create(model=name, messages=GRAVITY)
            assert failed.value.status_code == 500
            assert f"{name}.gguf" in failed.value.message
        with pytest.raises(openai.InternalServerError) as missing:
            client.chat.completions.create(model="absent", messages=GRAVITY)
        assert missing.value.status_code == 503
        assert "absent.gguf" in missing.value.message
        (models / "absent.gguf").symlink_to(_starter())
        with sdk(engine, retries=3) as patient:
            answer = patient.chat.completions.create(model="absent", messages=GRAVITY, max_tokens=4)
        assert answer.choices[0].message.content


def _starter() -> Path:
    from hypnos_engine.config.starter import STARTER_MODEL, starter_folder

    folder = starter_folder()
    assert folder is not None
    return folder / STARTER_MODEL.weights_path


def test_a_second_engine_of_the_same_user_says_where_the_first_one_serves(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as engine:
        second = subprocess.run(
            [sys.executable, "-m", "hypnos_engine", "serve", "--demo", "--port", str(engine.port)],
            env=private_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode != 0
        assert engine.address in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1


def test_the_demonstration_answers_without_any_library(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as engine, sdk(engine) as client:
        answer = client.chat.completions.create(model="demo", messages=GRAVITY, max_tokens=200)
        assert "demonstration" in (answer.choices[0].message.content or "").lower()
