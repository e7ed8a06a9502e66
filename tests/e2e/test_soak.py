"""Ten restless minutes, or two: at the end no process, descriptor, block, locked page or lease too many."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.tiny_gguf import Geometry
from tests.e2e.engine_process import RunningEngine, serving
from tests.e2e.soaking import Soak

MODELS = ("full", "winding", "mixture", "hybrid")
MACHINE = """
[hardware.simulate]
host_bytes = "8G"
cores = 2

[[hardware.simulate.devices]]
name = "made-up card"
total_bytes = "{card}M"

[[hardware.simulate.others]]
used_bytes = "{others}M"
after_secs = 20

[[hardware.simulate.others]]
used_bytes = 0
after_secs = 45
"""


def configured(folder: Path, hardware: str) -> Path:
    """A configuration of four tiny models, each of another kind."""
    tiny_gguf.write_llama(folder / "full.gguf", Geometry())
    tiny_gguf.write_llama(folder / "winding.gguf", Geometry(spread=0.12))
    tiny_gguf.write_moe(folder / "mixture.gguf")
    tiny_gguf.write_hybrid(folder / "hybrid.gguf", Geometry(layers=4))
    blocks = "".join(
        f'\n[[models]]\nid = "{name}"\nmodality = "text_generation"\nengine = "ggml_llama"\n'
        f'weights_path = "{name}.gguf"\ncontext_len = 2048\nslots = 2\nkeep_warm_in_ram = true\nallow_untested = true\n'
        for name in MODELS
    )
    config = folder / "hypnos.toml"
    head = f"config_version = 1\nmodels_dir = {json.dumps(str(folder))}\n"
    config.write_text(f"{head}\n[hardware]\nkv_park = true\n{hardware}{blocks}", encoding="utf-8")
    return config


def descriptors(engine: RunningEngine) -> tuple[int, int]:
    """How many the engine has, and how many of them are nameless blocks."""
    folder = Path(f"/proc/{engine.process.pid}/fd")
    targets = [str(entry.readlink()) for entry in folder.iterdir() if entry.is_symlink()]
    return len(targets), sum("memfd:" in target for target in targets)


def locked_bytes(process: psutil.Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1]) * 1024
    return 0


def soak(folder: Path, hardware: str, seconds: float) -> None:
    config = configured(folder, hardware)
    with serving(folder / "home", "--config", str(config)) as engine:
        asyncio.run(Soak(engine, MODELS, 5.0).run())  # what is made once and kept is made now
        before, _ = descriptors(engine)
        long = Soak(engine, MODELS, seconds, seed=1)
        asyncio.run(long.run())
        assert not long.wrongs, "\n".join(long.wrongs[:20])
        assert long.outcomes["ask 200"] > 0, long.outcomes
        status = engine.get("/v1/memory/status")
        assert [model["active_leases"] for model in status["models"]] == [0] * len(MODELS)
        assert (status["tier1_vram_used_bytes"], status["tier2_pinned_ram_used_bytes"]) == (0, 0)
        after, blocks = descriptors(engine)
        assert (blocks, after <= before + 8) == (0, True), (before, after)
        children = psutil.Process(engine.process.pid).children(recursive=True)
        assert sum(locked_bytes(child) for child in children) == 0
        assert len(children) <= 5, [child.cmdline() for child in children]  # holder, readers, a spare with its own
        assert engine.end() == 0, engine.log[-3000:]
        assert not [child for child in children if child.is_running()]


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_two_restless_minutes_leave_nothing_behind(tmp_path: Path) -> None:
    soak(tmp_path, MACHINE.format(card=521, others=516), 120.0)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_restless_minutes_leave_nothing_behind(tmp_path: Path) -> None:
    soak(tmp_path, 'tier1_bytes = "64M"\n', 600.0)
