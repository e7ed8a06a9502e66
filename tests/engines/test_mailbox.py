"""The mailbox of one generation: order, joining, bounds and the one error at the end."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.domain.errors import EngineFailed, WorkerDied
from hypnos_engine.engines.base import GenerationEvent
from hypnos_engine.engines.mailbox import Mailbox, OutOfOrder
from hypnos_engine.ipc import messages as m

DONE = m.Finished(99, "stop", 3, 2, 1, m.EngineTiming())


def mailbox(max_tokens: int = 100) -> Mailbox:
    return Mailbox(m.Generate(7, "local", (), max_tokens))


async def take_all(box: Mailbox) -> list[GenerationEvent]:
    events = [await box.take()]
    while not isinstance(events[-1], m.Finished):
        events.append(await box.take())
    return events


async def test_text_that_waits_is_joined_and_carries_the_callers_number() -> None:
    box = mailbox()
    box.accept(3, 1)
    for word in ("a", "b", "", "c"):
        box.add(word)
    box.finish(DONE)
    events = await take_all(box)
    assert events == [m.Accepted(7, 3, 1), m.Delta(7, "abc"), m.Finished(7, "stop", 3, 2, 1, m.EngineTiming())]


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), max_size=30))
def test_reasoning_and_answer_keep_their_order(pieces: list[tuple[str, bool]]) -> None:
    async def run() -> list[GenerationEvent]:
        box = mailbox()
        box.accept(1, 0)
        for text, reasoning in pieces:
            box.add(text, reasoning=reasoning)
        box.finish(DONE)
        return await take_all(box)

    deltas = [event for event in asyncio.run(run()) if isinstance(event, m.Delta)]
    for reasoning in (True, False):
        said = "".join(text for text, flag in pieces if flag is reasoning)
        assert "".join(delta.text for delta in deltas if delta.reasoning is reasoning) == said
    flags = [delta.reasoning for delta in deltas]
    assert all(one is not other for one, other in itertools.pairwise(flags))
    assert all(delta.text for delta in deltas)


async def test_a_reader_that_waits_is_woken_by_each_event() -> None:
    box = mailbox()
    reading = asyncio.create_task(take_all(box))
    await asyncio.sleep(0)
    box.accept(1, 0)
    await asyncio.sleep(0)
    box.add("x")
    await asyncio.sleep(0)
    box.add("y")
    await asyncio.sleep(0)
    box.finish(DONE)
    assert [type(event) for event in await reading] == [m.Accepted, m.Delta, m.Delta, m.Finished]


async def test_the_error_comes_after_the_text_and_is_the_readers_own() -> None:
    box, error = mailbox(), WorkerDied("gone")
    box.accept(1, 0)
    box.add("so far")
    box.fail(error)
    box.fail(EngineFailed("too late"))
    box.add("never seen")
    box.finish(DONE)
    assert box.complete
    assert isinstance(await box.take(), m.Accepted)
    assert await box.take() == m.Delta(7, "so far")
    for _ in range(2):
        with pytest.raises(WorkerDied, match="gone") as caught:
            await box.take()
        assert caught.value is not error


async def test_a_finished_request_cannot_fail_any_more() -> None:
    box = mailbox()
    box.accept(1, 0)
    box.finish(DONE)
    box.fail(WorkerDied("late"))
    assert [type(event) for event in await take_all(box)] == [m.Accepted, m.Finished]


async def test_what_comes_too_early_is_out_of_order() -> None:
    box = mailbox()
    with pytest.raises(OutOfOrder):
        box.add("x")
    with pytest.raises(OutOfOrder):
        box.finish(DONE)
    box.accept(1, 0)
    with pytest.raises(OutOfOrder):
        box.accept(1, 0)


async def test_text_is_bounded_by_the_request() -> None:
    box = mailbox(max_tokens=1)
    box.accept(1, 0)
    box.add("x" * (64 * 1024 + 512))
    with pytest.raises(OutOfOrder):
        box.add("x")
