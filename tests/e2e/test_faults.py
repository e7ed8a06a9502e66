"""Workers that die and hang under a serving program: who is told, who notices nothing, what works afterwards."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from hypnos_engine.testing import tiny_gguf
from tests.e2e.engine_process import RunningEngine, serving
from tests.workers.damage import cut, write_aborting

pytestmark = pytest.mark.starter

HELLO = [{"role": "user", "content": "Hello"}]
STORY = [{"role": "user", "content": "Tell me a very long story about the sea, with many details."}]


def sdk(engine: RunningEngine, retries: int = 0) -> Any:
    return openai.OpenAI(base_url=f"{engine.address}/v1", api_key="anything", max_retries=retries)


def configured(folder: Path, *models: str) -> Path:
    """A configuration of models whose files are named after them."""
    config = folder / "hypnos.toml"
    blocks = "".join(
        f'[[models]]\nid = "{name}"\nmodality = "text_generation"\nengine = "ggml_llama"\n'
        f'weights_path = "{name}.gguf"\ncontext_len = 2048\n'
        for name in models
    )
    config.write_text(f'config_version = 1\nmodels_dir = "{folder}"\n{blocks}', encoding="utf-8")
    return config


def starter() -> Path:
    from hypnos_engine.config.starter import STARTER_MODEL, starter_folder

    folder = starter_folder()
    assert folder is not None
    return folder / STARTER_MODEL.weights_path


def worker_of(engine: RunningEngine, model: str) -> psutil.Process:
    """The worker that has a model's file open or mapped."""
    (found,) = [
        worker for worker in engine.workers() if any(f"{model}.gguf" in place.path for place in worker.memory_maps())
    ]
    return found


def events_of(stream: Any) -> Iterator[str]:
    return (line for line in stream.iter_lines() if line.startswith("data: "))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[RunningEngine]:
    """Two talkative models, each with a file of its own."""
    for name in ("first", "second"):
        shutil.copyfile(starter(), tmp_path / f"{name}.gguf")
    with serving(tmp_path / "home", "--config", str(configured(tmp_path, "first", "second"))) as engine:
        yield engine


def _last_chunk(events: list[str]) -> Any:
    assert events[-1] == "data: [DONE]"
    return json.loads(events[-2].removeprefix("data: "))


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (lambda worker, _: worker.send_signal(signal.SIGABRT), "SIGABRT"),
        (lambda worker, _: worker.send_signal(signal.SIGKILL), "ran out of memory"),
        (lambda _, file: cut(file, file.stat().st_size // 2), "was cut short or replaced"),
    ],
    ids=["abort", "kill", "cut"],
)
def test_a_death_is_told_to_its_own_clients_alone(two: RunningEngine, tmp_path: Path, cause: Any, words: str) -> None:
    asked = {"messages": STORY, "stream": True}
    with sdk(two) as client:
        create = client.chat.completions.with_streaming_response.create
        with (
            create(model="first", max_tokens=400, **asked) as dying,
            create(model="second", max_tokens=60, **asked) as living,
        ):
            dead, alive = events_of(dying), events_of(living)
            seen = [next(dead) for _ in range(3)]
            next(alive)
            cause(worker_of(two, "first"), tmp_path / "first.gguf")
            chunk = _last_chunk([*seen, *dead])
            assert chunk["choices"][0]["finish_reason"] == "error"
            assert chunk["error"]["type"] == "server_error"
            assert "'first'" in chunk["error"]["message"]
            assert words in chunk["error"]["message"]
            assert _last_chunk(list(alive))["choices"][0]["finish_reason"] in ("stop", "length")
        if words == "was cut short or replaced":
            with pytest.raises(openai.InternalServerError, match=r"first\.gguf"):
                client.chat.completions.create(model="first", messages=HELLO, max_tokens=4)
            shutil.copyfile(starter(), tmp_path / "first.gguf")
    with sdk(two, retries=4) as patient:
        assert patient.chat.completions.create(model="first", messages=HELLO, max_tokens=4).choices
    assert words in two.log
    assert two.get("/v1/models/first")["active_leases"] == 0


@pytest.mark.slow
def test_a_hang_is_told_and_the_next_request_works(two: RunningEngine) -> None:
    """The bound is real here: twenty seconds."""
    with sdk(two) as client:
        create = client.chat.completions.with_streaming_response.create
        with create(model="first", messages=STORY, max_tokens=300, stream=True) as response:
            events = events_of(response)
            seen = [next(events) for _ in range(3)]
            worker = worker_of(two, "first")
            os.kill(worker.pid, signal.SIGSTOP)
            assert client.chat.completions.create(model="second", messages=HELLO, max_tokens=4).choices
            chunk = _last_chunk([*seen, *events])
        assert chunk["choices"][0]["finish_reason"] == "error"
        assert "made no step for" in chunk["error"]["message"]
        assert "its process was stopped" in chunk["error"]["message"]
        worker.wait(30)
        assert client.chat.completions.create(model="first", messages=HELLO, max_tokens=4).choices
    assert "made no step for" in two.log


def test_a_model_that_dies_of_every_load_rests_and_recovers_when_mended(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    write_aborting(bad)
    tiny_gguf.write_llama(tmp_path / "good.gguf")
    with (
        serving(tmp_path / "home", "--config", str(configured(tmp_path, "bad", "good"))) as engine,
        sdk(engine) as client,
    ):
        statuses: list[int] = []
        refused: openai.APIStatusError | None = None
        while refused is None and len(statuses) < 8:
            with pytest.raises(openai.APIStatusError) as failed:
                client.chat.completions.create(model="bad", messages=HELLO, max_tokens=4)
            statuses.append(failed.value.status_code)
            if failed.value.status_code == 503:
                refused = failed.value
            else:
                assert "GGML_ASSERT" in failed.value.message
            assert client.chat.completions.create(model="good", messages=HELLO, max_tokens=4).choices
        assert refused is not None, statuses
        assert statuses[:-1] == [500] * (len(statuses) - 1)
        assert refused.type == "model_not_available"
        assert 1 <= int(refused.response.headers["retry-after"]) <= 30
        assert "GGML_ASSERT(n_embd_head == n_rot) failed" in refused.message
        assert not any("bad" in " ".join(worker.cmdline()) for worker in engine.workers())
        tiny_gguf.write_moe(bad)
        with sdk(engine, retries=6) as patient:
            assert patient.chat.completions.create(model="bad", messages=HELLO, max_tokens=4).choices
        assert "GGML_ASSERT(n_embd_head == n_rot) failed" in engine.log
