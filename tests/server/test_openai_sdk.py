"""The official OpenAI SDK, unchanged, with nothing but a base_url (contract §1.1-17, §17-25)."""

import gc
from collections.abc import Iterator

import openai
import pytest

from hypnos_engine.domain.errors import EngineFailed, ModelBusy, RateLimited
from tests.loops import LoopFactory
from tests.server.fake_runtime import FakeRuntime, Gate, Script
from tests.server.running import ADMIN, KEYS, running, serving_in_thread

HI: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


def client_of(address: str, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


async def test_it_lists_retrieves_chats_and_streams(loop_factory: LoopFactory) -> None:
    runtime = FakeRuntime(fake=Script(thoughts=("Hm.",), cached_tokens=2))
    async with running(runtime) as server, client_of(server.address) as sdk:
        listed = [model.id async for model in sdk.models.list()]
        model = await sdk.models.retrieve("fake")
        whole = await sdk.chat.completions.create(model="fake", messages=HI, max_completion_tokens=64)
        stream = await sdk.chat.completions.create(model="fake", messages=HI, stream=True, reasoning_effort="low")
        chunks = [chunk async for chunk in stream]
    assert listed == [model.id] == ["fake"]
    assert whole.choices[0].message.content == "Hello, world"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 10
    assert whole.model_extra is not None
    assert whole.model_extra["hypnos_telemetry"]["previous_tier"] == "tier1_gpu_vram"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"
    assert chunks[1].choices[0].delta.model_extra == {"reasoning_content": "Hm."}
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 2


async def test_its_tools_for_streams_work() -> None:
    async with (
        running() as server,
        client_of(server.address) as sdk,
        sdk.chat.completions.stream(model="fake", messages=HI) as stream,
    ):
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "Hello, world"


@pytest.mark.parametrize(
    ("script", "model", "key", "expected"),
    [
        (Script(), "fake", "wrong", openai.AuthenticationError),
        (Script(), "none", ADMIN, openai.NotFoundError),
        (Script(enabled=False), "fake", ADMIN, openai.NotFoundError),
        (Script(refuse=ModelBusy("full")), "fake", ADMIN, openai.RateLimitError),
        (Script(refuse=RateLimited("slow down", limit="max_concurrent")), "fake", ADMIN, openai.RateLimitError),
        (Script(fail=EngineFailed("broken")), "fake", ADMIN, openai.InternalServerError),
    ],
)
async def test_it_raises_its_own_errors(script: Script, model: str, key: str, expected: type[Exception]) -> None:
    """§2-19, §4."""
    async with running(FakeRuntime(fake=script), keys=KEYS) as server, client_of(server.address, key) as sdk:
        with pytest.raises(expected) as caught:
            await sdk.chat.completions.create(model=model, messages=HI)
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.request_id is not None
    assert caught.value.request_id.startswith("req-")
    if script.refuse and isinstance(script.refuse, RateLimited):
        assert caught.value.code == "max_concurrent"
        assert caught.value.response.headers["Retry-After"] == "1"


async def test_a_bad_request_names_the_field() -> None:
    async with running() as server, client_of(server.address) as sdk:
        with pytest.raises(openai.BadRequestError, match="max_tokens: must be at least 1"):
            await sdk.chat.completions.create(model="fake", messages=HI, max_tokens=0)


async def test_a_stream_that_fails_midway_raises() -> None:
    """A-09: the SDK looks for a top-level error in a chunk."""
    runtime = FakeRuntime(fake=Script(pieces=("Hel",), fail=EngineFailed("the worker was killed")))
    async with running(runtime) as server, client_of(server.address) as sdk:
        stream = await sdk.chat.completions.create(model="fake", messages=HI, stream=True)
        seen: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                seen.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError, match="the worker was killed"):
            await read()
    assert "".join(seen) == "Hel"


async def read_one_chunk_and_close(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(model="fake", messages=HI, stream=True)
    async for _ in stream:
        break
    await stream.close()


async def test_closing_a_stream_cancels_it(loop_factory: LoopFactory) -> None:
    """§17-19..21."""
    runtime = FakeRuntime(fake=Script(gates={1: Gate()}))
    async with running(runtime) as server, client_of(server.address) as sdk:
        await read_one_chunk_and_close(sdk)
        await runtime.until(lambda: runtime.idle)
        gc.collect()  # the SDK leaves generators behind, which have to end while their loop still runs


@pytest.fixture
def address() -> Iterator[str]:
    with serving_in_thread(FakeRuntime()) as address:
        yield address


def test_the_synchronous_client_works_too(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as sdk:
        assert [model.id for model in sdk.models.list()] == ["fake"]
        whole = sdk.chat.completions.create(model="fake", messages=HI)
        stream = sdk.chat.completions.create(model="fake", messages=HI, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert whole.choices[0].message.content == streamed == "Hello, world"
