"""A swap between two models of which one fits: Hypnos from RAM and from disk, beside a fresh llama-server for each.

`python -m benchmarks.swap.run` takes about four minutes and prints a table. Both get the same files, threads, cells and
questions; the other side is started and ended as llama-swap does it: end the old process, start the new one, wait for
its health route, hand the request on. Must never leave a file of the other case in the page cache.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.swap.engine import Pair, swapping
from benchmarks.text import prompts
from benchmarks.text.build_llama_server import LlamaServer, built
from benchmarks.text.client import Client
from benchmarks.text.measures import body
from benchmarks.text.noise import OtherPrograms, load_average, machine
from benchmarks.text.report import Figure, Goal, table
from benchmarks.text.servers import Settings, llama_server
from benchmarks.text.starter import starter_model

FIRST = Goal("ms to the first token after a swap", bar=0.6, goal=0.5)
WEIGHTS = Goal("ms of it for the weights", bar=1.05, goal=1.00)
REST = Goal("ms of the load that are not the weights", bar=120, goal=80, kind="ours")
SWITCH = Goal("ms in which the request waited for its model")
CASES = ("from RAM", "from disk")
MOST_QUESTIONS = 200
WORDS = 6
"""Of a question: what is measured is the swap, not the reading of a prompt."""

_TIMED = re.compile(r"^(\d+)\.(\d+)\.(\d+)\.(\d+) ")
_WEIGHTS_BEGIN, _WEIGHTS_END = "load_model: loading model", "constructing llama_context"


@dataclass(frozen=True)
class Swap:
    """One swap as its client saw it, in milliseconds."""

    first_ms: float
    switch_ms: float
    weights_ms: float

    @property
    def rest_ms(self) -> float:
        return self.switch_ms - self.weights_ms


def forget(path: Path) -> None:
    """Drop a file from the page cache; what a process maps or locks stays."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def our_swaps(pair: Pair, client: Client, rounds: int, *, from_disk: bool) -> list[Swap]:
    """Ask the two models in an order that nobody can foresee: Hypnos loads a model ahead of a question that it expects.

    A question whose model was there already swaps nothing and is not counted.
    """
    found: list[Swap] = []
    draw = random.Random(0)
    for number in itertools.count():
        if len(found) == rounds:
            return found
        name, path = pair.model(draw.randrange(2))
        pair.wait_until_settled(held=not from_disk)
        if from_disk:
            forget(path)
        asked = {**body(prompts.long_question(number + 700_000, WORDS), 4), "model": name}
        (answer,) = client.ask(pair.port, [asked])
        phases = answer.telemetry.get("tier_switch_phases")
        if phases and answer.telemetry["evicted_models"]:
            switch_ms = float(answer.telemetry["tier_switch_latency_ms"])
            found.append(Swap(answer.first_s * 1e3, switch_ms, float(phases["weights_ms"])))
        elif number > MOST_QUESTIONS:
            raise RuntimeError(f"only {len(found)} swaps in {number} questions")
    return found


def their_swaps(
    server: LlamaServer, models: Sequence[Path], client: Client, rounds: int, *, from_disk: bool
) -> list[Swap]:
    """The same questions to llama-server, ended and started anew for each of them."""
    found: list[Swap] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            before, path = models[(number + 1) % 2], models[number % 2]
            with llama_server(server, _settings(before)) as old:
                question = body(prompts.long_question(number + 600_000, WORDS), 4)
                client.ask(old.port, [question])
                if from_disk:
                    forget(path)
                begun_s = time.perf_counter()
                old.process.terminate()
                old.process.wait(30)
                ended_s = time.perf_counter()
            log = Path(folder) / f"log {number}"
            options = ("-fit", "off", "-lv", "4", "--log-timestamps", "--log-file", str(log))
            with llama_server(server, _settings(path), *options) as new:
                question = body(prompts.long_question(number + 700_000, WORDS), 4)
                (answer,) = client.ask(new.port, [question])
                switch_ms = (ended_s - begun_s + new.started_s) * 1e3
            found.append(Swap(switch_ms + answer.first_s * 1e3, switch_ms, _weights_ms(log)))
    return found


def _weights_ms(log: Path) -> float:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    begin, end = (next(line for line in lines if mark in line) for mark in (_WEIGHTS_BEGIN, _WEIGHTS_END))
    return _at_ms(end) - _at_ms(begin)


def _at_ms(line: str) -> float:
    found = _TIMED.match(line)
    if found is None:
        raise RuntimeError(f"llama-server's log has no time in this line: {line}")
    minutes, seconds, milliseconds, microseconds = map(int, found.groups())
    return minutes * 60e3 + seconds * 1e3 + milliseconds + microseconds / 1e3


def _settings(model: Path) -> Settings:
    return Settings(model, threads=2, slots=1, context_len=2048)


def measured(case: str, ours: Sequence[Swap], theirs: Sequence[Swap], foreign: float) -> list[Figure]:
    """The rows of one case."""
    values: list[tuple[Goal, Callable[[Swap], float]]] = [
        (FIRST, lambda swap: swap.first_ms),
        (SWITCH, lambda swap: swap.switch_ms),
        (WEIGHTS, lambda swap: swap.weights_ms),
        (REST, lambda swap: swap.rest_ms),
    ]
    return [
        Figure.of(
            Goal(f"{goal.what}, {case}", goal.bar, goal.goal, goal.more_is_better, goal.kind),
            [(value(our), value(their)) for our, their in zip(ours, theirs, strict=True)],
            foreign,
        )
        for goal, value in values
    ]


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="Measure swaps between two models of which one fits.")
    parser.add_argument("--model", type=Path, help="GGUF file, used twice (default: the starter model)")
    parser.add_argument("--other", type=Path, help="GGUF file of the second model (default: a copy of the first)")
    parser.add_argument("--rounds", type=int, default=10, help="swaps of each case (10)")
    parser.add_argument("--json", type=Path, help="file to write every value to")
    options = parser.parse_args(arguments)
    server = built()
    if server is None:
        parser.error("llama-server is not built: run python -m benchmarks.text.build_llama_server")
    first = options.model or starter_model()
    begun = f"{machine()}\nload average before: {load_average()}"
    figures: list[Figure] = []
    # On a disk, not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Client() as client:
        models = [
            Path(shutil.copy(path, Path(folder) / name))
            for path, name in ((first, "a.gguf"), (options.other or first, "b.gguf"))
        ]
        for case in CASES:
            from_disk = case == CASES[1]
            others = OtherPrograms()
            others.start(())
            with swapping(Path(folder) / case, models, held=not from_disk) as pair:
                ours = our_swaps(pair, client, options.rounds, from_disk=from_disk)
            theirs = their_swaps(server, models, client, options.rounds, from_disk=from_disk)
            figures += measured(case, ours, theirs, others.cores())
    print(f"{begun}\nload average after: {load_average()}\n")
    print(table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    return 1 if any(figure.verdict == "missed" for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
