"""Hypnos beside llama-server: rates, times to the first token, loads and memory; medians, spreads and ratios.

`python -m benchmarks.text.run` takes about ten minutes on two cores and prints a table; both servers run at the same
time, take turns in short rounds, and get the same model, threads, batch sizes and questions. Must never print a figure
without saying how much of the machine other programs used meanwhile.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.text import loads, report
from benchmarks.text.build_llama_server import LlamaServer, built
from benchmarks.text.client import Client
from benchmarks.text.measures import Round
from benchmarks.text.noise import OtherPrograms, load_average, machine
from benchmarks.text.report import Figure, Goal
from benchmarks.text.servers import Running, Settings, hypnos, llama_server
from benchmarks.text.starter import starter_model
from hypnos_engine.testing import tiny_gguf

RATE_ALONE = Goal("tokens/s, one stream", bar=0.97, goal=1.00, more_is_better=True)
RATE_TOGETHER = Goal("tokens/s, four streams together", bar=1.00, goal=1.10, more_is_better=True)
RATE_WHOLE = Goal("tokens/s, four new requests with their prompts", more_is_better=True)
FIRST_NEW = Goal("ms to the first token, new prompt of 500 tokens", bar=1.05, goal=1.00)
FIRST_NEXT = Goal("ms to the first token, next turn, prefix cached", bar=1.00, goal=0.80)


@dataclass(frozen=True)
class Pair:
    """Both servers on one model and the client, all of them pinned alike."""

    ours: Running
    theirs: Running
    client: Client

    def in_turn(self, number: int) -> tuple[Running, Running]:
        """Who goes first changes from round to round."""
        return (self.ours, self.theirs) if number % 2 == 0 else (self.theirs, self.ours)


@contextmanager
def pair(server: LlamaServer, settings: Settings, client_cores: frozenset[int]) -> Iterator[Pair]:
    """Run both servers and the client."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(hypnos(home, settings))
        theirs = stack.enter_context(llama_server(server, settings))
        yield Pair(ours, theirs, stack.enter_context(Client(client_cores)))


def rates(both: Pair, threads: int, rounds: int) -> list[Figure]:
    """All measurements of speed at one number of threads."""
    for running in (both.ours, both.theirs):
        Round(both.client, running, -1).decode_alone()  # the first answer of a process is slower
    plan: list[tuple[tuple[Goal, ...], Callable[[Round], object]]] = [
        ((RATE_ALONE,), Round.decode_alone),
        ((RATE_TOGETHER,), Round.decode_together),
        ((RATE_WHOLE,), Round.together_whole),
        ((FIRST_NEW, FIRST_NEXT), Round.first_token),
    ]
    found: list[Figure] = []
    for goals, measure in plan:
        others = OtherPrograms()
        others.start((both.ours.process, both.theirs.process))
        seen: list[tuple[object, object]] = []
        for number in range(rounds):
            values = {one.name: measure(Round(both.client, one, number)) for one in both.in_turn(number)}
            seen.append((values[both.ours.name], values[both.theirs.name]))
        foreign = others.cores()
        for position, goal in enumerate(goals):
            pairs = [(_part(ours, position), _part(theirs, position)) for ours, theirs in seen]
            whole = [(a, b) for a, b in pairs if a is not None and b is not None]
            found.append(Figure.of(replace(goal, threads=threads), whole, foreign))
            print(found[-1].line(), file=sys.stderr, flush=True)
    return found


def _part(value: object, position: int) -> float | None:
    picked = value[position] if isinstance(value, tuple) else value
    return float(picked) if isinstance(picked, int | float) else None


def _cores(threads: int) -> tuple[frozenset[int], frozenset[int]]:
    """Cores of the servers and of the client: apart with one thread, all of them for both otherwise."""
    return (frozenset({0}), frozenset({1})) if threads == 1 else (frozenset(), frozenset())


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="Compare Hypnos with llama-server.")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the starter model)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each measurement (8)")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="engine threads to measure with (1 2)")
    parser.add_argument("--parts", nargs="*", default=["rates", "load", "memory"], choices=["rates", "load", "memory"])
    parser.add_argument("--json", type=Path, help="file to write every value to")
    options = parser.parse_args(arguments)
    server = built()
    if server is None:
        parser.error("llama-server is not built: run python -m benchmarks.text.build_llama_server")
    begun = f"{machine()}\nload average before: {load_average()}"
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        # A copy that nobody else maps: pages that others share would be left out of the memory of a process.
        model = Path(shutil.copy(options.model or starter_model(), folder))
        tiny = Path(folder) / "tiny.gguf"
        tiny_gguf.write_llama(tiny)
        if "rates" in options.parts:
            for threads in options.threads:
                servers_on, client_on = _cores(threads)
                with pair(server, Settings(model, threads=threads, cores=servers_on), client_on) as both:
                    figures += rates(both, threads, options.rounds)
        if "load" in options.parts:
            figures += loads.load(server, Settings(model, threads=2), max(3, options.rounds - 2))
        if "memory" in options.parts:
            figures += loads.memory(server, model, tiny)
    print(f"{begun}\nload average after: {load_average()}\n")
    print(report.table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    return 1 if any(figure.verdict == "missed" for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
