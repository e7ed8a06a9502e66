"""Tiny models of every kind of memory whose arithmetic depends on nothing but the tokens.

Weights and cache are quantised, so that the library computes the same bits however a text is divided into batches,
wherever it lies in the cache and whatever runs beside it (`test_llama_memory_states` shows that, and where not).
A reused, moved or restored state then has to give exactly what computing anew gives, and the smallest fault shows.
"""

from collections.abc import Callable
from pathlib import Path

from hypnos_engine.testing import tiny_gguf
from hypnos_engine.testing.tiny_gguf import Geometry

KV_TYPE = "q8_0"

WINDOW = 64
"""Tokens that the sliding layers attend to."""

KINDS: dict[str, tuple[Callable[[Path, Geometry], None], Geometry]] = {
    "full": (tiny_gguf.write_llama, Geometry(spread=0.2, quantised=True)),
    "sliding_window": (tiny_gguf.write_sliding_window, Geometry(layers=7, quantised=True)),
    "hybrid": (tiny_gguf.write_hybrid, Geometry(layers=4, spread=0.2, quantised=True)),
    "delta_net": (tiny_gguf.write_delta_net, Geometry(layers=4, spread=0.2, quantised=True)),
    "recurrent": (tiny_gguf.write_recurrent, Geometry(spread=0.2, quantised=True)),
    "mixture": (tiny_gguf.write_moe, Geometry(spread=0.2, quantised=True)),
    "latent": (tiny_gguf.write_mla, Geometry(layers=3, head_size=64, spread=0.2, quantised=True)),
    "shared_kv": (tiny_gguf.write_shared_kv, Geometry(layers=6, head_size=64, quantised=True)),
}
UNCUTTABLE = ("sliding_window", "shared_kv", "hybrid", "delta_net", "recurrent")
"""Kinds whose memory cannot go back by itself, or not far."""
WINDOWED = ("sliding_window", "shared_kv")
"""Kinds with a window: once its cells are used again they lie in another order, and sums have another order."""
STATEFUL = ("hybrid", "delta_net", "recurrent")
"""Kinds that keep a running state, which cannot be cut at all."""


def write_all(folder: Path) -> dict[str, Path]:
    """One file of each kind."""
    paths = {kind: folder / f"{kind}.gguf" for kind in KINDS}
    for kind, (write, geometry) in KINDS.items():
        write(paths[kind], geometry)
    return paths
