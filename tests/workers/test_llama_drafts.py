"""Guessed tokens change how fast an answer comes and never what it says; nor its end, nor the cache behind it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hypnos_engine.domain.drafting import MOST_DRAFTED
from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.tiny_gguf import Geometry
from tests.workers.driver import ROOT, Reply, Worker, chat, environment

PROGRAM = Path(__file__).with_name("drawing_program.py")
EAGER = (sys.executable, "-P", str(Path(__file__).with_name("eager_worker.py")))
"""Guesses always: whether that pays depends on the machine and is decided by what `test_gain` tests."""
FRESH = m.Sampling(temperature=1.0)
KV_TYPE = "q8_0"
"""With weights and cache quantised, the bits do not depend on how many tokens are computed together."""
CUTTABLE: dict[str, tuple[Callable[[Path, Geometry], None], Geometry]] = {
    "full": (tiny_gguf.write_llama, Geometry(quantised=True)),
    "winding": (tiny_gguf.write_llama, Geometry(spread=0.12, quantised=True)),
    "sliding_window": (tiny_gguf.write_sliding_window, Geometry(layers=7, quantised=True)),
    "mixture": (tiny_gguf.write_moe, Geometry(quantised=True)),
    "latent": (tiny_gguf.write_mla, Geometry(layers=3, head_size=64, quantised=True)),
    "shared_kv": (tiny_gguf.write_shared_kv, Geometry(layers=6, head_size=64, quantised=True)),
}
STATEFUL: dict[str, tuple[Callable[[Path, Geometry], None], Geometry]] = {
    "hybrid": (tiny_gguf.write_hybrid, Geometry(layers=4)),
    "delta_net": (tiny_gguf.write_delta_net, Geometry(layers=4)),
}
STORY = "Write a long story about a dog and a cat."
PROMPT = " ".join(f"Sentence {number} of the prompt is here." for number in range(12))

CODE = (ROOT / "hypnos_engine/workers/stops.py").read_text()
PEOPLE = json.dumps([{"name": name, "age": 30, "city": "Paris"} for name in ("Ann", "Bob", "Eve", "Tom")], indent=1)
NOTE = (
    "The quick brown fox jumps over the lazy dog. A slow green turtle walks under the busy bridge. On Monday the fox "
    "and the turtle meet at the old mill, and they talk about the weather until the sun goes down."
)
QUOTING = (
    f"Repeat this text word for word:\n\n{NOTE}",
    f"Quote the first sentence of this text, then the last one:\n\n{NOTE}",
    f"Correct the spelling and return the whole text:\n\n{NOTE.replace('quick', 'qiuck')}",
    f"Return this list with every age increased by one:\n\n{PEOPLE}",
    f"Return this JSON unchanged:\n\n{PEOPLE}",
    f"Add a person called Max to this list:\n\n{PEOPLE}",
    f"Return this file unchanged:\n```python\n{CODE[:900]}\n```",
    f"Rename the class to Finder and return the file:\n```python\n{CODE[:900]}\n```",
    f"Add a docstring to every method:\n```python\n{CODE[400:1300]}\n```",
    "Write a JSON list of ten people with the fields name, age and city.",
    "Write a JSON list of the planets with the fields name and position.",
    "List the numbers from 1 to 60, one per line.",
    "Write 'I will not talk in class.' twenty times.",
    "Write a table in Markdown of ten countries, their capitals and their continents.",
    "Write an HTML list of ten fruits.",
    "Sing a song whose refrain comes four times.",
)
ORDINARY = (
    "What is the capital of France? Answer in one sentence.",
    STORY,
    "Explain how a bicycle stays upright.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What is the difference between a list and a tuple in Python?",
    "Write a poem about the sea.",
    "Who was Marie Curie?",
    "How do I boil an egg?",
    "Describe your favourite animal in three sentences.",
    "Translate 'good morning' into French, Spanish and Italian.",
    "What happens when water freezes?",
    "Write a short email to a landlord about a broken heater.",
    "Name three things to see in Rome and say why.",
    "What is a prime number?",
    "Give me advice for a job interview.",
)


@pytest.fixture(scope="module")
def plain(starter: Path) -> Iterator[Worker]:
    """A worker that does not guess. With q8_0 the arithmetic does not depend on how many tokens a step has."""
    with Worker("llama") as worker:
        worker.load(starter, kv_type=KV_TYPE)
        yield worker


@pytest.fixture(scope="module")
def guessing(starter: Path) -> Iterator[Worker]:
    with Worker("llama") as worker:
        worker.load(starter, kv_type=KV_TYPE, draft="ngram")
        yield worker


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Tiny models for which a letter is a token. Their weights are random: the likeliest text soon repeats itself."""
    folder = tmp_path_factory.mktemp("kinds")
    paths = {kind: folder / f"{kind}.gguf" for kind in CUTTABLE | STATEFUL}
    for kind, (write, geometry) in (CUTTABLE | STATEFUL).items():
        write(paths[kind], geometry)
    return paths


@pytest.fixture(scope="module")
def tiny_plain(kinds: Mapping[str, Path]) -> Iterator[Worker]:
    with Worker("llama") as worker:
        worker.load(kinds["full"], threads=1, slots=3, kv_type=KV_TYPE)
        yield worker


@pytest.fixture(scope="module")
def tiny_guessing(kinds: Mapping[str, Path]) -> Iterator[Worker]:
    with Worker("llama", argv=EAGER) as worker:
        worker.load(kinds["full"], threads=1, slots=3, kv_type=KV_TYPE, draft="ngram")
        yield worker


def _seen(reply: Reply) -> tuple[str, str, int, int]:
    end = reply.end
    return reply.text, end.finish_reason, end.prompt_tokens, end.completion_tokens


def _hits(reply: Reply) -> int:
    timing = reply.end.timing
    assert timing.drafted_tokens is not None
    assert timing.accepted_tokens is not None
    assert 0 <= timing.accepted_tokens <= timing.drafted_tokens
    return timing.accepted_tokens


def _drafted(reply: Reply) -> int:
    return reply.end.timing.drafted_tokens or 0


def _compare(plain: Worker, guessing: Worker, *requests: m.Generate) -> list[Reply]:
    expected, seen = (worker.ask_all(*requests) for worker in (plain, guessing))
    assert [_seen(reply) for reply in seen] == [_seen(reply) for reply in expected]
    return seen


# --- the text -----------------------------------------------------------------------------------------------------


@pytest.mark.starter
@pytest.mark.parametrize("text", [*QUOTING[:4], *ORDINARY[:2]], ids=lambda text: text[:30])
def test_the_text_is_that_without_guesses(plain: Worker, guessing: Worker, text: str) -> None:
    _compare(plain, guessing, chat(1, text, max_tokens=60, scope=text))


@pytest.mark.slow
@pytest.mark.starter
@pytest.mark.parametrize("text", [*QUOTING[4:], *ORDINARY[2:]], ids=lambda text: text[:30])
def test_the_text_is_that_without_guesses_for_many_more_prompts(plain: Worker, guessing: Worker, text: str) -> None:
    _compare(plain, guessing, chat(1, text, max_tokens=120, scope=text))


@pytest.mark.slow
@pytest.mark.starter
@pytest.mark.parametrize("first", [0, 3, 6, 9])
def test_the_texts_of_several_answers_at_once_are_those_without_guesses(starter: Path, first: int) -> None:
    """In an empty cache: what earlier requests left of theirs gives sums another order, with guesses or without."""
    texts = QUOTING[first : first + 4]
    requests = [chat(number, text, max_tokens=40, scope=str(number)) for number, text in enumerate(texts)]
    with Worker("llama") as plain, Worker("llama", argv=EAGER) as guessing:
        plain.load(starter, kv_type=KV_TYPE)
        guessing.load(starter, kv_type=KV_TYPE, draft="ngram")
        _compare(plain, guessing, *requests)


@pytest.mark.starter
def test_a_quotation_is_guessed(starter: Path, plain: Worker) -> None:
    with Worker("llama", argv=EAGER) as eager:
        eager.load(starter, kv_type=KV_TYPE, draft="ngram")
        requests = [chat(number, text, max_tokens=60) for number, text in enumerate(QUOTING[:3])]
        replies = [_compare(plain, eager, request)[0] for request in requests]
    assert sum(map(_drafted, replies)) > sum(map(_hits, replies)) > 0


@pytest.mark.starter
def test_a_seed_keeps_its_text_and_is_served_without_guesses(plain: Worker, guessing: Worker) -> None:
    for seed in (1, 2):
        request = chat(1, QUOTING[0], max_tokens=40, sampling=m.Sampling(temperature=0.8, seed=seed))
        (reply,) = _compare(plain, guessing, request)
        assert reply.end.timing.drafted_tokens is None
    (reply,) = _compare(plain, guessing, chat(1, QUOTING[0], max_tokens=40, sampling=m.Sampling(0.0, seed=1)))
    assert reply.end.timing.drafted_tokens is None


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("kind", ["full", "sliding_window"])
def test_samplers_draw_with_guesses_what_they_draw_without(
    kinds: Mapping[str, Path], kind: str, temperature: float
) -> None:
    command = [sys.executable, str(PROGRAM), str(kinds[kind]), str(temperature)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    assert all(answer["guessed"] == answer["plain"] for answer in answers)
    assert all(answer["steps"] < 100 for answer in answers)  # of 200 tokens
    assert len({tuple(answer["plain"]) for answer in answers}) == (3 if temperature else 1)


@pytest.mark.parametrize("kind", CUTTABLE)
def test_models_whose_cache_can_be_cut_are_guessed(kinds: Mapping[str, Path], kind: str) -> None:
    requests = [chat(number, f"{number} {PROMPT}", max_tokens=150, scope=str(number)) for number in range(2)]
    with Worker("llama") as plain, Worker("llama", argv=EAGER) as guessing:
        plain.load(kinds[kind], threads=1, kv_type=KV_TYPE)
        guessing.load(kinds[kind], threads=1, kv_type=KV_TYPE, draft="ngram")
        hits = sum(_hits(_compare(plain, guessing, request)[0]) for request in requests)
        assert hits > 0 or kind == "shared_kv"  # whose likeliest text does not repeat itself


@pytest.mark.parametrize("kind", STATEFUL)
def test_models_with_running_states_are_never_guessed(kinds: Mapping[str, Path], kind: str) -> None:
    with Worker("llama", argv=EAGER) as worker:
        worker.load(kinds[kind], threads=1, kv_type=KV_TYPE, draft="ngram")
        end = worker.ask(chat(1, PROMPT, max_tokens=100)).end
        assert (end.completion_tokens, end.timing.drafted_tokens) == (100, None)


def test_nothing_is_guessed_unless_it_was_asked_for(tiny_plain: Worker) -> None:
    timing = tiny_plain.ask(chat(1, PROMPT, max_tokens=20)).end.timing
    assert (timing.drafted_tokens, timing.accepted_tokens) == (None, None)


# --- ends inside of a guess ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3, 17, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80])
def test_the_limit_is_kept_to_the_token(tiny_plain: Worker, tiny_guessing: Worker, most: int) -> None:
    (reply,) = _compare(tiny_plain, tiny_guessing, chat(1, PROMPT, max_tokens=most, scope=str(most)))
    assert (reply.end.finish_reason, reply.end.completion_tokens) == ("length", most)


@pytest.mark.parametrize("more", [1, 2, 40, 61])
def test_a_window_is_kept_to_the_token(tiny_plain: Worker, tiny_guessing: Worker, more: int) -> None:
    prompt = tiny_plain.ask(chat(1, PROMPT, max_tokens=1)).end.prompt_tokens
    request = chat(1, PROMPT, max_tokens=500, num_ctx=prompt + more, scope=f"window {more}")
    (reply,) = _compare(tiny_plain, tiny_guessing, request)
    assert reply.end.prompt_tokens + reply.end.completion_tokens == prompt + more


def test_a_full_cache_is_used_to_its_last_cell(kinds: Mapping[str, Path]) -> None:
    """Two answers whose cells fill the cache: a guess that took one more would find none."""
    with Worker("llama", argv=EAGER) as worker:
        worker.load(kinds["full"], threads=1, kv_type=KV_TYPE, slots=2, context_len=512, draft="ngram")
        prompt = worker.ask(chat(1, "x" * 60, max_tokens=1)).end.prompt_tokens
        requests = [chat(number, "xy"[number] * 60, max_tokens=256 - prompt, scope=str(number)) for number in range(2)]
        replies = worker.ask_all(*requests)
        assert [reply.end.completion_tokens for reply in replies] == [256 - prompt] * 2
        assert sum(map(_hits, replies)) > 0
        assert "find a memory slot" not in worker.stderr


def test_a_stop_string_inside_of_a_guess_ends_the_answer(tiny_plain: Worker, tiny_guessing: Worker) -> None:
    whole = tiny_plain.ask(chat(1, PROMPT, max_tokens=120)).text
    for length in (3, 20, 37, 50):
        request = chat(1, PROMPT, max_tokens=120, stop=(whole[:length],), scope=f"stop {length}")
        (reply,) = _compare(tiny_plain, tiny_guessing, request)
        assert (reply.text, reply.end.finish_reason) == ("", "stop")


@pytest.mark.starter
def test_an_answer_that_was_quoted_to_its_end_ends(plain: Worker, guessing: Worker) -> None:
    """What follows the match is the end of a turn in the prompt."""
    request = chat(1, "Say yes.", "Yes, of course, whatever you like.", "Say the same again.", max_tokens=60)
    (reply,) = _compare(plain, guessing, request)
    assert reply.end.finish_reason == "stop"


def test_one_step_has_one_delta_for_an_answer(tiny_guessing: Worker) -> None:
    seen = len(tiny_guessing.all_of(m.Step))
    reply = tiny_guessing.ask(chat(1, PROMPT, max_tokens=200, scope="deltas"))
    steps = tiny_guessing.all_of(m.Step)[seen:]
    assert all(len(step.deltas) == len({delta.id for delta in step.deltas}) for step in steps)
    assert reply.end.completion_tokens == 200
    assert len(steps) < 150
    assert max(len(delta.text) for step in steps for delta in step.deltas) <= MOST_DRAFTED + 1


# --- company and what is left behind ------------------------------------------------------------------------------


def test_a_cancelled_answer_leaves_its_company_alone(kinds: Mapping[str, Path], tiny_plain: Worker) -> None:
    undisturbed = tiny_plain.ask(chat(1, STORY, max_tokens=300)).text
    # With an empty cache: what earlier requests left would give sums another order.
    with Worker("llama", argv=EAGER) as worker:
        worker.load(kinds["full"], threads=1, slots=3, kv_type=KV_TYPE, draft="ngram")
        worker.start(*(chat(number, STORY, max_tokens=300 * number, scope=f"c{number}") for number in (1, 2, 3)))
        worker.until(lambda: all(len(worker.reply(number).text) > 40 for number in (1, 2, 3)))
        worker.cancel(2)
        worker.until_over(1)
        worker.cancel(3)
        assert worker.reply(1).text == undisturbed
        again = worker.ask(chat(4, STORY, max_tokens=300, scope="c2"))
        assert again.end.cached_tokens > 0
        assert again.text == undisturbed


def test_answers_come_and_go_while_others_are_guessed(tiny_plain: Worker, tiny_guessing: Worker) -> None:
    texts = [f"{number % 4} {PROMPT}" for number in range(12)]
    requests = [
        chat(number, text, max_tokens=20 + 13 * number, scope=str(number % 5)) for number, text in enumerate(texts)
    ]
    expected = [tiny_plain.ask(request) for request in requests]
    replies = tiny_guessing.ask_all(*requests)
    assert [_seen(reply) for reply in replies] == [_seen(reply) for reply in expected]
    assert sum(map(_hits, replies)) > 0


def test_failed_guesses_leave_their_company_alone(kinds: Mapping[str, Path]) -> None:
    """Cells of failed guesses, if others took them, would give their sums another order."""
    requests = [chat(number, f"{number} {PROMPT}", max_tokens=150, scope=str(number)) for number in range(3)]
    with Worker("llama") as plain, Worker("llama", argv=EAGER) as guessing:
        plain.load(kinds["winding"], threads=1, slots=3, kv_type=KV_TYPE)
        guessing.load(kinds["winding"], threads=1, slots=3, kv_type=KV_TYPE, draft="ngram")
        replies = _compare(plain, guessing, *requests)
    assert sum(map(_drafted, replies)) > sum(map(_hits, replies)) > 0


def test_a_next_turn_goes_on_from_a_guessed_answer(tiny_plain: Worker, tiny_guessing: Worker) -> None:
    """What failed guesses left in the cache would show here."""
    (reply,) = _compare(tiny_plain, tiny_guessing, chat(1, PROMPT, max_tokens=90, scope="turns"))
    follow = chat(1, PROMPT, reply.text, "And what else?", max_tokens=60, scope="turns")
    (warm,) = _compare(tiny_plain, tiny_guessing, follow)
    assert warm.end.cached_tokens > reply.end.prompt_tokens - 1
    fresh = tiny_guessing.ask(chat(1, PROMPT, reply.text, "And what else?", max_tokens=60, scope="fresh"))
    assert (fresh.text, fresh.end.cached_tokens) == (warm.text, 0)


def test_drawn_answers_differ_and_keep_their_limits(tiny_guessing: Worker) -> None:
    request = chat(1, PROMPT, max_tokens=60, sampling=FRESH)
    first, second = (tiny_guessing.ask(request) for _ in range(2))
    assert first.text != second.text
    assert first.end.completion_tokens <= 60


def test_a_larger_cache_keeps_a_guessed_answer(kinds: Mapping[str, Path], tiny_plain: Worker) -> None:
    undisturbed = tiny_plain.ask(chat(1, STORY, max_tokens=200)).text
    with Worker("llama", argv=EAGER) as worker:
        worker.load(kinds["full"], threads=1, kv_type=KV_TYPE, slots=2, context_len=512, draft="ngram")
        worker.start(chat(1, STORY, max_tokens=200))
        worker.until(lambda: len(worker.reply(1).text) > 30)
        worker.send(m.ResizeContext(2048), m.SetThreads(1))
        worker.until_over(1)
        assert worker.next_of(m.ContextResized).context_len == 2048
        assert worker.reply(1).text == undisturbed


def test_nothing_is_guessed_for_more_answers_than_a_kernel_takes(kinds: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.load(kinds["full"], threads=1, kv_type=KV_TYPE, slots=64, context_len=64 * 512, draft="ngram")
        replies = worker.ask_all(
            *(chat(number, f"{number}", max_tokens=400, scope=str(number)) for number in range(64))
        )
        assert all(reply.end.completion_tokens == 400 for reply in replies)
        assert max(reply.end.timing.concurrent_slots or 0 for reply in replies) == 64
        assert _hits(worker.ask(chat(1, STORY, max_tokens=200))) > 0


def test_the_room_for_the_logits_of_guesses_is_reported(kinds: Mapping[str, Path], tiny_plain: Worker) -> None:
    with Worker("llama") as worker:
        guessing = worker.load(kinds["full"], threads=1, kv_type=KV_TYPE, slots=3, draft="ngram").memory.workspace_bytes
    assert guessing > tiny_plain.all_of(m.Loaded)[0].memory.workspace_bytes
