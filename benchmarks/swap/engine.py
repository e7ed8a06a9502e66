"""Runs Hypnos with two models and room for one of them; the budget comes from what one takes when it is loaded."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.text.servers import MODEL_NAME, Running, Settings, free_port, started

NAMES = (f"{MODEL_NAME}-a", f"{MODEL_NAME}-b")
SETTLED_S = 30.0
ROOM = 1.7
"""Room in tier 1, in models: one and the pages of the other fit, two do not."""
_POLL_S = 0.01
_TIERS = {True: "tier2_pinned_ram", False: "tier3_nvme_ssd"}


@dataclass(frozen=True)
class Pair:
    """A running engine and its two models."""

    running: Running
    paths: tuple[Path, ...]

    @property
    def port(self) -> int:
        return self.running.port

    def model(self, number: int) -> tuple[str, Path]:
        """Name and file of the model that question `number` asks."""
        return NAMES[number % 2], self.paths[number % 2]

    def status(self) -> dict[str, object]:
        """The answer of the status route."""
        code, answer = self.running.get("/v1/memory/status")
        if code != 200 or not isinstance(answer, dict):
            raise RuntimeError(f"no status: {answer}")
        return answer

    def wait_until_settled(self, *, held: bool) -> None:
        """Wait until no model moves and those without a worker are where they are to be. Raises RuntimeError."""
        deadline_s = time.monotonic() + SETTLED_S
        while time.monotonic() < deadline_s:
            models = self.status()["models"]
            assert isinstance(models, list)
            cold = [model for model in models if model["residency"] != "ready"]
            if all(model["residency"] == "cold" and model["current_tier"] == _TIERS[held] for model in cold):
                return
            time.sleep(_POLL_S)
        raise RuntimeError(f"the models did not come to rest: {json.dumps(self.status())}")


@contextmanager
def swapping(home: Path, models: Sequence[Path], *, held: bool, more: str = "") -> Iterator[Pair]:
    """Run Hypnos for the block. `held`: what leaves tier 1 stays in RAM; `more` is further text for `[hardware]`."""
    need_bytes = _need_bytes(home / "alone", models[0])
    settings = f"tier1_bytes = {int(need_bytes * ROOM)}\n{more}" + ("" if held else "tier2_bytes = 0\n")
    with _engine(home / "pair", _configuration(models, settings, held=held)) as running:
        yield Pair(running, tuple(models))


def _need_bytes(home: Path, model: Path) -> int:
    with _engine(home, _configuration([model], "", held=False, warm=True)) as running:
        return int(running.get("/v1/memory/status")[1]["tier1_vram_used_bytes"])


def _configuration(models: Sequence[Path], hardware: str, *, held: bool, warm: bool = False) -> str:
    blocks = "".join(
        f"""
[[models]]
id = "{name}"
modality = "text_generation"
engine = "ggml_llama"
weights_path = {json.dumps(path.name)}
context_len = 2048
slots = 1
kv_type = "f16"
initial_tier = "{"tier1_gpu_vram" if warm else _TIERS[held]}"
keep_warm_in_ram = {"true" if held else "false"}
"""
        for name, path in zip(NAMES, models, strict=False)
    )
    folder = json.dumps(str(models[0].parent))
    return f"config_version = 1\nmodels_dirs = [{folder}]\n\n[hardware]\nthreads = 2\n{hardware}{blocks}"


@contextmanager
def _engine(home: Path, configuration: str) -> Iterator[Running]:
    home.mkdir(parents=True, exist_ok=True)
    path = home / "hypnos.toml"
    path.write_text(configuration, encoding="utf-8")
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HYPNOS_", "XDG_"))}
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    command = [sys.executable, "-P", "-m", "hypnos_engine", "serve", "--config", str(path), "--port", str(port)]
    environment = {**kept, **folders, "HOME": str(home)}
    with started("hypnos", command, environment, port, "/ready", Settings(path)) as running:
        yield running
