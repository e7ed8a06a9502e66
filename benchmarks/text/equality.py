"""Is the likeliest text of Hypnos that of llama-server? Every difference is looked into: a near tie, or a fault.

`python -m benchmarks.text.equality` asks both servers the same questions. First alone, with prompts that both cut into
the same calls of 64 tokens: there every text must be equal. Then as they are used: alone, four at a time, as second
turns, after the cache was rebuilt larger, and after other requests made Hypnos set states aside and restore them. There
both texts are right where the tokens that they part with lie closer together than llama-server's own figures move with
the company of a request; that noise is measured in the same run; or where llama-server itself gives both texts, beside
one company or another. Anything else is a true difference and must not occur.
"""

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.text import prompts
from benchmarks.text.build_llama_server import built
from benchmarks.text.client import ROUTE, Answer, Client
from benchmarks.text.companies import Companies, companies
from benchmarks.text.measures import body
from benchmarks.text.noise import load_average, machine
from benchmarks.text.servers import MODEL_NAME, Running, Settings, hypnos, llama_server
from benchmarks.text.starter import starter_model

TOGETHER = 4
SMALL_CONTEXT, LARGE_CONTEXT = 2048, 8192
CUT_ALIKE = ("-b", "64", "-ub", "64", "--cache-ram", "0")
"""Makes llama-server cut prompts as Hypnos does for a request with a seed."""
_TOP = 10
ASKINGS, OTHERS = 60, 200
"""How often llama-server is asked once more beside others, and among how many those are drawn."""


@dataclass
class Difference:
    """One question with two answers."""

    section: str
    question: Sequence[prompts.Message]
    ours: str
    theirs: str
    ended: bool
    """Whether Hypnos ended its answer by itself."""
    gap: float | None = None
    """How much likelier llama-server's token is than that of Hypnos where the texts part, in natural logarithms;
    None when the token of Hypnos is not among the likeliest."""
    near_tie: bool = False


@dataclass
class Section:
    """One way of asking."""

    name: str
    asked: int = 0
    reused: int = 0
    """Questions of which Hypnos had part of the prompt in its cache."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def true_differences(self) -> int:
        return sum(not difference.near_tie for difference in self.differences)


class Comparison:
    """Asks both servers and collects what differs."""

    def __init__(self, client: Client, ours: Running, theirs: Running, tokens: int) -> None:
        self._client = client
        self._ours = ours
        self._theirs = theirs
        self._tokens = tokens
        self.sections: list[Section] = []

    def section(self, name: str) -> None:
        """Count what follows under this name."""
        print(f"asking {name} ...", file=sys.stderr, flush=True)
        self.sections.append(Section(name))

    def ask(self, questions: Sequence[prompts.Conversation], **more: object) -> list[str]:
        """Ask all questions at once, first one server, then the other; returns llama-server's answers.

        `more` are fields of the requests; each server ignores those of the other.
        """
        bodies = [body(one, self._tokens, **more) for one in questions]
        ours = self._client.ask(self._ours.port, bodies)
        theirs = self._client.ask(self._theirs.port, bodies)
        section = self.sections[-1]
        for question, mine, other in zip(questions, ours, theirs, strict=True):
            section.asked += 1
            section.reused += mine.cached_tokens > 0
            if _whole(mine) != _whole(other):
                ended = mine.finish_reason == "stop"
                section.differences.append(Difference(section.name, question, _whole(mine), _whole(other), ended))
        return [answer.text for answer in theirs]

    def look_into(self, noise: float, held: Companies) -> None:
        """Find out for every difference whether it is a near tie."""
        for difference in (one for section in self.sections for one in section.differences):
            steps = explained(self._theirs, difference.question, self._tokens)
            _judge(difference, steps, noise)
            if difference.gap is None and difference.ours:
                _, answer = self._theirs.post("/apply-template", {"messages": difference.question})
                _judge_in_companies(difference, steps, held, answer["prompt"], noise)
            if not difference.near_tie:
                difference.near_tie = self._given_in_other_company(difference)

    def _given_in_other_company(self, difference: Difference) -> bool:
        """Whether llama-server itself goes on as Hypnos did when it is asked beside others, often enough."""
        draw, others = random.Random(0), prompts.conversations(OTHERS)
        pairs = zip(difference.ours, difference.theirs, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        for _ in range(ASKINGS):
            beside = draw.sample(others, 2 * TOGETHER - 1)
            self._client.ask(self._theirs.port, [body(one, 8) for one in beside[:TOGETHER]])
            bodies = [body(one, self._tokens) for one in (difference.question, *beside[TOGETHER:])]
            text = _whole(self._client.ask(self._theirs.port, bodies)[0])
            if text != difference.theirs and text[: same + 1] == difference.ours[: same + 1]:
                return True
        return False


def _whole(answer: Answer) -> str:
    """The text without a character that the limit of tokens cut in two, which only one of the servers shows."""
    return answer.text.rstrip("\ufffd")


@dataclass(frozen=True)
class Step:
    """One token of llama-server and the likeliest ones at its place, with their logarithms."""

    text: bytes
    top: tuple[tuple[bytes, float], ...]

    @property
    def gap(self) -> float:
        return self.top[0][1] - self.top[1][1]


def explained(server: Running, question: Sequence[prompts.Message], tokens: int, **more: object) -> list[Step]:
    """The tokens of llama-server's answer with what stood beside them."""
    request = body(question, tokens, logprobs=True, top_logprobs=_TOP, **more)
    status, answer = server.post(ROUTE, {**request, "stream": False})
    if status != 200:
        raise RuntimeError(f"llama-server does not explain its answer: {answer}")
    return [_step(entry) for entry in answer["choices"][0]["logprobs"]["content"]]


def _step(entry: dict[str, Any]) -> Step:
    top = tuple((bytes(one["bytes"]), float(one["logprob"])) for one in entry["top_logprobs"])
    return Step(bytes(entry["bytes"]), top)


def _judge(difference: Difference, steps: Sequence[Step], noise: float) -> None:
    """Fill in how much likelier llama-server's token is where the texts part."""
    ours = difference.ours.encode()
    starts, position = [0], 0
    parted = False
    for step in steps:
        rest = ours[position:]
        # A step without text ends the answer.
        parted = bool(rest) or not difference.ended if not step.text else not rest.startswith(step.text)
        if parted or not step.text:
            break
        position += len(step.text)
        starts.append(position)
    # A last token that ends inside of a character: llama-server shows nothing of it, Hypnos the space before.
    left = ours[position:] if difference.ended else ours[position:].strip()
    if not parted and not left:  # asked once more, with its prompt in the cache, it gives our text
        difference.gap, difference.near_tie = 0.0, True
        return
    gaps = [
        step.top[0][1] - likelihood
        for start, step in zip(starts, steps, strict=False)
        for text, likelihood in step.top
        if text != step.text and _may_be(text, ours[start:], start + len(text), position, ended=difference.ended)
    ]
    difference.gap = min(gaps, default=None)
    difference.near_tie = difference.gap is not None and difference.gap <= noise


def _judge_in_companies(
    difference: Difference, steps: Sequence[Step], held: Companies, prompt: str, noise: float
) -> None:
    """The same where llama-server shows nothing: near is what moves there by as much as it is apart."""
    theirs = b"".join(step.text for step in steps).decode(errors="ignore")
    pairs = zip(difference.ours, theirs, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if same == len(difference.ours):
        return
    common = difference.ours[:same]
    gaps = held.gaps(prompt, common, difference.ours[same:])
    difference.gap = min(gaps)
    difference.near_tie = difference.gap <= max(noise, max(gaps) - min(gaps))


def _may_be(token: bytes, rest: bytes, token_end: int, parted: int, *, ended: bool) -> bool:
    """Whether Hypnos can have taken the token here: the text goes on with it, beyond the place where it parts."""
    if not token:
        return ended and not rest
    return rest.startswith(token) and token_end > parted


def measured_noise(server: Running, questions: Iterable[prompts.Conversation], tokens: int) -> tuple[float, int]:
    """How far the gap between two tokens moves in llama-server itself when a request has other company.

    Each question is answered from an empty cache, from a full one, and beside three others; returns the largest change
    at any place where the texts so far are the same, and the number of places compared.
    """
    largest, places = 0.0, 0
    pool = ThreadPoolExecutor(TOGETHER)
    with pool:
        for group in _groups(questions, TOGETHER):
            cold = [explained(server, one, tokens, cache_prompt=False) for one in group]
            warm = [explained(server, one, tokens) for one in group]
            beside = list(pool.map(lambda one: explained(server, one, tokens, cache_prompt=False), group))
            for reference, *variants in zip(cold, warm, beside, strict=True):
                for variant in variants:
                    for a, b in zip(reference, variant, strict=False):
                        places += 1
                        if {text for text, _ in a.top[:2]} == {text for text, _ in b.top[:2]}:
                            same_order = a.top[0][0] == b.top[0][0]
                            largest = max(largest, abs(a.gap - b.gap) if same_order else a.gap + b.gap)
                        if a.text != b.text:
                            break
    return largest, places


def _groups(questions: Iterable[prompts.Conversation], size: int) -> list[list[prompts.Conversation]]:
    whole = list(questions)
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def compare_cut_alike(comparison: Comparison, count: int) -> None:
    """Ask each question alone, from an empty cache."""
    comparison.section("alone, prompts cut alike")
    for question in prompts.conversations(count):
        comparison.ask([question], seed=1, cache_prompt=False)


def compare_as_used(comparison: Comparison, count: int) -> None:
    """Ask four at a time `count` questions, and a quarter of that in every other way."""
    asked = prompts.conversations(2 * count)
    comparison.section("four at a time")
    for group in _groups(asked[:count], TOGETHER):
        comparison.ask(group)
    quarter = count // 4
    alone, turns, restored, seeded = (asked[count + part * quarter :][:quarter] for part in range(4))
    comparison.section("alone")
    answers = [comparison.ask([question])[0] for question in alone]
    comparison.section("second turns, prefix cached")
    for number, (question, answer) in enumerate(zip(alone, answers, strict=True)):
        comparison.ask([question])
        comparison.ask([prompts.follow_up(question, answer, number)])
    comparison.section("cache rebuilt larger between two turns")
    answers = [comparison.ask([question])[0] for question in turns]
    comparison.ask([prompts.long_question(0, 30)], num_ctx=LARGE_CONTEXT)
    second = [prompts.follow_up(one, answer, i) for i, (one, answer) in enumerate(zip(turns, answers, strict=True))]
    for group in _groups(reversed(second), TOGETHER):
        comparison.ask(group)
    comparison.section("states set aside and restored between two turns")
    for number, (question, other) in enumerate(zip(restored, seeded, strict=True)):
        answer = comparison.ask([question])[0]
        comparison.ask([other], seed=1)  # a seed makes Hypnos empty the cache for this request
        comparison.ask([prompts.follow_up(question, answer, number)])


def table(sections: Sequence[Section]) -> str:
    """All sections as a Markdown table."""
    rows = [
        "| asked | answers | with a cached prefix | equal | near ties | true differences |",
        "|---|---|---|---|---|---|",
    ]
    for section in sections:
        different, true = len(section.differences), section.true_differences
        equal = section.asked - different
        rows.append(f"| {section.name} | {section.asked} | {section.reused} | {equal} | {different - true} | {true} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns 1 when a true difference was found."""
    parser = argparse.ArgumentParser(description="Compare the likeliest texts of Hypnos and llama-server.")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the starter model)")
    parser.add_argument("--count", type=int, default=200, help="questions cut alike, and four at a time (200)")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer (48)")
    parser.add_argument("--threads", type=int, default=2, help="engine threads of both servers (2)")
    parser.add_argument("--json", type=Path, help="file to write every difference to")
    options = parser.parse_args(arguments)
    server = built()
    if server is None:
        parser.error("llama-server is not built: run python -m benchmarks.text.build_llama_server")
    model = options.model or starter_model()
    small = Settings(model, threads=options.threads, context_len=SMALL_CONTEXT)
    large = Settings(model, threads=options.threads, context_len=LARGE_CONTEXT)
    with ExitStack() as stack:
        client = stack.enter_context(Client())
        held = stack.enter_context(companies(model))
        ours = stack.enter_context(hypnos(Path(stack.enter_context(tempfile.TemporaryDirectory())), small))
        # With one slot its cells begin at the first one each time: its figures then depend on nothing else.
        with llama_server(server, replace(large, slots=1), *CUT_ALIKE) as theirs:
            alike = Comparison(client, ours, theirs, options.tokens)
            compare_cut_alike(alike, options.count)
            alike.look_into(0.0, held)
        theirs = stack.enter_context(llama_server(server, large))
        comparison = Comparison(client, ours, theirs, options.tokens)
        compare_as_used(comparison, options.count)
        noise, places = measured_noise(theirs, prompts.conversations(max(TOGETHER, options.count // 8)), options.tokens)
        comparison.look_into(noise, held)
        cells = _cells(ours)
    sections = alike.sections + comparison.sections
    print(f"{machine()}\nload average: {load_average()}\nmodel: {model.name}, {options.threads} threads")
    print(f"cache of Hypnos at the end: {cells} cells (it began with {SMALL_CONTEXT})")
    print(f"noise of llama-server itself: {noise:.3f} (largest change of a gap at {places} places)\n")
    print(table(sections))
    differences = [one for section in sections for one in section.differences]
    for one in differences:
        gap = "not among the likeliest" if one.gap is None else f"{one.gap:.4f}"
        print(f"  {'near tie' if one.near_tie else 'TRUE'}: {one.section}: {gap}")
    if options.json is not None:
        outcome = {"model": model.name, "noise": noise, "places": places, "sections": [asdict(one) for one in sections]}
        options.json.write_text(json.dumps(outcome, indent=1, ensure_ascii=False))
    return 1 if any(not one.near_tie for one in differences) else 0


def _cells(ours: Running) -> int:
    _, status = ours.get("/v1/memory/status")
    entry = next(one for one in status["models"] if one["id"] == MODEL_NAME)
    return int(entry["placement"]["allocated_context_len"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
