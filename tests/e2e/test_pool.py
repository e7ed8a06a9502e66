"""The pool changes under load: the OpenAI SDK asks a real engine meanwhile, and only what is documented fails."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from hypnos_engine.api.client import HypnosClient
from hypnos_engine.domain.errors import ModelBusy
from hypnos_engine.domain.kinds import Tier
from hypnos_engine.testing.tiny_gguf import write_llama, write_moe
from tests.e2e.engine_process import END_S, RunningEngine, free_port, private_environment, serving

LONGEST_S = 120.0
ENOUGH = 6
"""Answers of each kind that a phase waits for."""
QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello there"}]


def block(name: str, file: str, **settings: object) -> str:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in settings.items()]
    return "\n".join(
        [
            "[[models]]",
            f'id = "{name}"',
            'modality = "text_generation"',
            'engine = "ggml_llama"',
            f'weights_path = "{file}"',
            "context_len = 512",
            *lines,
            "",
        ]
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    write_llama(models / "a.gguf")
    write_llama(models / "b.gguf", seed=1)
    write_moe(models / "c.gguf")
    text = f'config_version = 1\nmodels_dir = "models"\n[hardware]\nspare_workers = 0\n{block("kept", "a.gguf")}'
    (tmp_path / "hypnos.toml").write_text(text, encoding="utf-8")
    return tmp_path


@dataclass
class Callers:
    """Clients that ask without a pause, and what they got."""

    sdk: openai.AsyncOpenAI
    answers: Counter[str] = field(default_factory=Counter)
    absent: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask_on(self, model: str, *, stream: bool) -> None:
        while True:
            try:
                await self._ask(model, stream=stream)
                self.answers[model] += 1
            except openai.NotFoundError as error:
                if error.type != "model_not_found":
                    self.failures.append(repr(error))
                self.absent[model] += 1
            except openai.OpenAIError as error:
                self.failures.append(repr(error))
            self.changed.set()

    async def _ask(self, model: str, *, stream: bool) -> None:
        if not stream:
            await self.sdk.chat.completions.create(model=model, messages=QUESTION, max_tokens=8)
            return
        async with await self.sdk.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=24, stream=True
        ) as events:
            reasons = [event.choices[0].finish_reason async for event in events if event.choices]
        if reasons[-1] not in ("length", "stop"):
            self.failures.append(f"a stream ended with {reasons[-1]}")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def more(self, what: Counter[str], *models: str) -> None:
        """Wait for further answers of that kind for each of the models."""
        before = Counter(what)
        await self.until(lambda: all(what[model] >= before[model] + ENOUGH for model in models))


async def change_all(client: HypnosClient, callers: Callers) -> None:
    answers, absent = callers.answers, callers.absent
    await callers.more(answers, "kept")
    await callers.more(absent, "guest")
    added = await client.add_model(config=block("guest", "b.gguf"))
    assert (added.model, added.action, added.persisted) == ("guest", "added", True)
    await callers.more(answers, "kept", "guest")
    for file in ("c.gguf", "b.gguf", "a.gguf"):
        replaced = await client.replace_model("kept", config=block("any", file, slots=2))
        assert (replaced.model, replaced.action, replaced.persisted) == ("kept", "replaced", True)
        await callers.more(answers, "kept", "guest")
    assert not any(absent[name] for name in ("kept",))
    removed = await client.remove_model("guest")
    assert (removed.action, removed.persisted) == ("removed", True)
    answers["guest"] = 0
    await callers.more(answers, "kept")
    await callers.more(absent, "guest")
    assert not answers["guest"], "a removed model answers nobody"


async def under_load(engine: RunningEngine) -> Callers:
    async with (
        asyncio.timeout(LONGEST_S),
        openai.AsyncOpenAI(base_url=f"{engine.address}/v1", api_key="any", max_retries=0) as sdk,
        HypnosClient(engine.address) as client,
    ):
        callers = Callers(sdk)
        asking = [
            asyncio.create_task(callers.ask_on(model, stream=stream))
            for model in ("kept", "kept", "guest")
            for stream in (False, True)
        ]
        try:
            await change_all(client, callers)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    return callers


async def test_the_pool_changes_while_clients_ask(home: Path) -> None:
    """[§6.4-01..05] [§6.4-24] [§6.4-26] [§6.4-28] [§6.4-29] [§6.4-34] [§6.4-36] [§17-05] [§17-06] [§17-25]"""
    config = home / "hypnos.toml"
    before = config.read_bytes()
    with serving(home, "--config", str(config)) as engine:
        callers = await under_load(engine)
        assert not callers.failures
        engine.end(signal.SIGKILL)
    assert config.read_bytes() == before
    with serving(home, "--config", str(config)) as engine:
        async with HypnosClient(engine.address) as client:
            assert [model.id for model in await client.models()] == ["kept"]
            (status,) = (await client.memory_status()).models
            assert status.id == "kept"
    assert "slots = 2" in (home / "hypnos.models.toml").read_text(encoding="utf-8")


async def test_a_long_answer_holds_a_change_up_and_is_not_cut(home: Path) -> None:
    """[§6.4-31] [§6.4-35] [§17-08]"""
    with serving(home, "--config", str(home / "hypnos.toml")) as engine:
        async with (
            asyncio.timeout(LONGEST_S),
            openai.AsyncOpenAI(base_url=f"{engine.address}/v1", api_key="any", max_retries=0) as sdk,
            HypnosClient(engine.address) as client,
            await sdk.chat.completions.create(
                model="kept", messages=QUESTION, max_tokens=400, stream=True, stop=None
            ) as events,
        ):
            await anext(events)
            with suppress(ModelBusy):  # it may have ended by itself by then
                await client.remove_model("kept", drain_s=0)
                await client.add_model(config=block("kept", "a.gguf"))
            with suppress(ModelBusy):
                await client.replace_model("kept", config=block("kept", "b.gguf"), drain_s=0)
            reasons = [event.choices[0].finish_reason async for event in events if event.choices]
            assert reasons[-1] in ("length", "stop")
            await client.move("kept", Tier.DISK)
            assert [model.id for model in await client.models()] == ["kept"]


WITHOUT_PRIVILEGES = """
import ctypes, os, sys
if os.geteuid() == 0:  # root may write anywhere, until it gives up its capabilities
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capset(header, none) == 0
from hypnos_engine.cli.command_line import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A configuration in a folder that its user may not write to."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "hypnos.toml").write_text("config_version = 1\n[hardware]\nspare_workers = 0\n", encoding="utf-8")
    folder.chmod(0o555)
    yield folder
    open_up(folder)


def open_up(folder: Path) -> None:
    folder.chmod(0o755)


@contextmanager
def serving_without_privileges(home: Path, config: Path) -> Iterator[RunningEngine]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_PRIVILEGES, "serve", "--port", str(port), "--config", str(config)],
        env=private_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    engine = RunningEngine(process, port, home)
    try:
        assert process.stdout is not None
        if not any("http://127.0.0.1:" in line for line in process.stdout):
            raise AssertionError(f"it did not start: {process.communicate(timeout=END_S)}")
        engine.wait_ready()
        yield engine
    finally:
        process.kill()
        process.communicate(timeout=END_S)


@pytest.mark.skipif(sys.platform != "linux", reason="privileges are given up by a call of Linux")
async def test_what_cannot_be_written_is_said(closed: Path) -> None:
    """[§6.4-38] [§6.4-39]"""
    with serving_without_privileges(closed.parent, closed / "hypnos.toml") as engine:
        assert await persisted(engine, "a") is False
        open_up(closed)
        assert await persisted(engine, "b") is True
        assert [model["id"] for model in engine.get("/v1/models")["data"]] == ["a", "b"]
    text = (closed / "hypnos.models.toml").read_text(encoding="utf-8")
    assert 'id = "b"' in text
    assert 'id = "a"' not in text


async def persisted(engine: RunningEngine, name: str) -> bool:
    """Add a model; whether the change outlasts the engine."""
    text = f'[[models]]\nid = "{name}"\nmodality = "text_generation"\nengine = "fake"\n'
    async with asyncio.timeout(LONGEST_S), HypnosClient(engine.address) as client:
        return (await client.add_model(config=text)).persisted
