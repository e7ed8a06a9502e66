"""The next turn after a swap, with the conversation parked and without: times to the first token; medians and ratios.

`python -m benchmarks.parking.run` takes about five minutes on two cores and prints a table. Must never compare turns of
which one had another conversation, and never count a load for one side alone.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.text import prompts
from benchmarks.text.client import Answer, Client
from benchmarks.text.measures import body
from benchmarks.text.noise import QUIET_CORES, OtherPrograms, load_average, machine
from benchmarks.text.servers import MODEL_NAME, Running, Settings, free_port, started
from benchmarks.text.starter import starter_model

SOONER = 50.0
"""The bar: the first token of the turn comes so many times sooner than without parking."""
WORDS_PER_TOKEN = 0.8
"""Of the starter model, for the text that `prompts` makes."""
ANSWER_TOKENS = 8
NEXT_TURN = "Why?"


@dataclass(frozen=True)
class Turn:
    """One turn after a swap, in milliseconds."""

    whole_ms: float
    """From its sending to its first text."""
    load_ms: float
    """Of it, until the model was there with its conversation."""
    restore_ms: float
    """Of that, for the conversation."""
    prompt_tokens: int
    cached_tokens: int
    text: str

    @property
    def first_ms(self) -> float:
        """What the conversation cost until the first text."""
        return self.whole_ms - self.load_ms + self.restore_ms


@dataclass
class Row:
    """Both engines at one length."""

    tokens: int
    parked: list[Turn] = field(default_factory=list)
    anew: list[Turn] = field(default_factory=list)
    foreign_cores: float = 0.0

    @property
    def sooner(self) -> float:
        """How many times sooner the first token comes, the model being there."""
        return statistics.median(b.first_ms / a.first_ms for a, b in zip(self.parked, self.anew, strict=True))

    @property
    def problem(self) -> str:
        """What makes the row worthless; empty when nothing does."""
        if any(turn.cached_tokens < self.tokens // 2 for turn in self.parked):
            return "the conversation was not reused"
        if any(turn.cached_tokens for turn in self.anew):
            return "the conversation was there without parking"
        if [turn.text for turn in self.parked] != [turn.text for turn in self.anew]:
            return "the texts differ"
        return ""

    def lines(self) -> str:
        """Two rows of a Markdown table."""
        verdict = self.problem or ("yes" if self.sooner >= SOONER else "missed")
        noise = f"{self.foreign_cores:.2f}{' NOISY' if self.foreign_cores > QUIET_CORES else ''}"
        prompt = round(statistics.median(turn.prompt_tokens for turn in self.parked))
        there = [[turn.first_ms for turn in turns] for turns in (self.parked, self.anew)]
        whole = [[turn.whole_ms for turn in turns] for turns in (self.parked, self.anew)]
        whole_sooner = statistics.median(b / a for a, b in zip(*whole, strict=True))
        return (
            f"| first token, the model being there | {prompt} | {_spread(there[0])} | {_spread(there[1])} "
            f"| {self.sooner:.1f} | {SOONER:g} | {verdict} | {noise} |\n"
            f"| first token after the swap | {prompt} | {_spread(whole[0])} | {_spread(whole[1])} "
            f"| {whole_sooner:.1f} | | | {noise} |"
        )


@contextmanager
def engine(home: Path, model: Path, *, park: bool) -> Iterator[Running]:
    """Run Hypnos with the one model, which is loaded; every file of it below `home`."""
    home.mkdir(parents=True)
    path, port = home / "hypnos.toml", free_port()
    path.write_text(_configuration(model, park=park), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HYPNOS_", "XDG_"))}
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    command = [sys.executable, "-P", "-m", "hypnos_engine", "serve", "--config", str(path), "--port", str(port)]
    name = "with parking" if park else "without"
    with started(name, command, {**kept, **folders, "HOME": str(home)}, port, "/ready", Settings(model)) as running:
        yield running


def _configuration(model: Path, *, park: bool) -> str:
    return f"""\
config_version = 1
models_dirs = [{json.dumps(str(model.parent))}]

[hardware]
threads = 2
kv_park = {"true" if park else "false"}

[[models]]
id = "{MODEL_NAME}"
modality = "text_generation"
engine = "ggml_llama"
weights_path = {json.dumps(model.name)}
context_len = 8192
slots = 1
kv_type = "f16"
initial_tier = "tier1_gpu_vram"
keep_warm_in_ram = true
"""


def turn_after_swap(running: Running, client: Client, question: prompts.Conversation) -> Turn:
    """Ask, send the model away, and ask the next turn."""
    first = _ask(running, client, question)
    status, answer = running.post("/v1/memory/tier", {"model": MODEL_NAME, "target_tier": "tier2_pinned_ram"})
    if status != 200:
        raise RuntimeError(f"the model could not be sent away: {answer}")
    said = {"role": "assistant", "content": first.text}
    second = _ask(running, client, (*question, said, {"role": "user", "content": NEXT_TURN}))
    phases = second.telemetry.get("tier_switch_phases")
    if not phases:
        raise RuntimeError(f"the model was there already: {second.telemetry}")
    return Turn(
        whole_ms=second.first_s * 1e3,
        load_ms=float(second.telemetry["tier_switch_latency_ms"]),
        restore_ms=float(phases.get("kv_restore_ms") or 0.0),
        prompt_tokens=second.prompt_tokens,
        cached_tokens=second.cached_tokens,
        text=second.text,
    )


def _ask(running: Running, client: Client, conversation: Sequence[prompts.Message]) -> Answer:
    (answer,) = client.ask(running.port, [body(conversation, ANSWER_TOKENS)])
    return answer


def row(parking: Running, without: Running, client: Client, tokens: int, rounds: int) -> Row:
    """All rounds at one length; who goes first changes."""
    found, others = Row(tokens), OtherPrograms()
    others.start((parking.process, without.process))
    for number in range(rounds):
        question = prompts.long_question(800_000 + tokens + number, round(tokens * WORDS_PER_TOKEN))
        sides = [(found.parked, parking), (found.anew, without)]
        for turns, running in sides if number % 2 == 0 else reversed(sides):
            turns.append(turn_after_swap(running, client, question))
    found.foreign_cores = others.cores()
    return found


def _spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def main(arguments: Sequence[str]) -> int:
    """Entry point; returns 1 when the bar is missed or a row is worthless."""
    parser = argparse.ArgumentParser(description="Measure a turn after a swap, with parking and without.")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the starter model)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds at each length (3)")
    parser.add_argument("--tokens", type=int, nargs="*", default=[1000, 4000], help="lengths in tokens (1000 4000)")
    parser.add_argument("--json", type=Path, help="file to write every value to")
    options = parser.parse_args(arguments)
    before, rows = load_average(), []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = Path(shutil.copy(options.model or starter_model(), home))
        parking = stack.enter_context(engine(home / "parking", model, park=True))
        without = stack.enter_context(engine(home / "without", model, park=False))
        client = stack.enter_context(Client())
        for tokens in options.tokens:
            rows.append(row(parking, without, client, tokens, options.rounds))
            print(rows[-1].lines(), file=sys.stderr, flush=True)
    print(f"{machine()}\nload average before: {before}, after: {load_average()}\n")
    print("| ms | tokens | parked | computed anew | times sooner | bar | met | cores of others |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(one.lines() for one in rows))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in rows], indent=1))
    return 1 if any(one.problem or one.sooner < SOONER for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
