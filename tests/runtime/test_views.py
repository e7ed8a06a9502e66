"""What the views say about where a model is."""

from pathlib import Path

from hypnos_engine.domain.kinds import EngineKind, Modality, Pages, Tier
from hypnos_engine.domain.memory import Placement
from hypnos_engine.domain.model import ModelId, ModelSpec
from hypnos_engine.gguf import read_shape
from hypnos_engine.runtime.views import model_view
from hypnos_engine.scheduler import events as ev
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.state import FileSet
from hypnos_engine.testing.tiny_gguf import write_llama

A = ModelId("a")


def test_a_model_of_tier_2_has_its_layers_there(tmp_path: Path) -> None:
    """[§18-05] [§18-06] [§18-10]"""
    write_llama(tmp_path / "a.gguf")
    shape = read_shape(tmp_path / "a.gguf")
    scheduler = Scheduler([ModelSpec(A, Modality.TEXT, EngineKind.LLAMA, "a.gguf")])
    scheduler.on(ev.ModelInspected(A, shape, None), 0.0)
    state = scheduler.state
    on_disk = model_view(scheduler, state.models[A], None, 0.0)
    state.files["a.gguf"] = FileSet("a.gguf", Pages.HELD, 5000)
    held = model_view(scheduler, state.models[A], None, 0.0)
    assert on_disk.placement == Placement(primary_tier=Tier.DISK, ssd_layers=len(shape.layers))
    assert held.tier is Tier.RAM
    assert held.placement == Placement(
        primary_tier=Tier.RAM, pinned_ram_layers=len(shape.layers), pinned_ram_bytes=5000
    )  # fmt: skip
