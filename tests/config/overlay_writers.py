"""Puts models of its own into an overlay, one after the other: `overlay_writers.py <overlay> <name> <count>`."""

import sys
from pathlib import Path

from hypnos_engine.config.overlay import Overlay
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec

if __name__ == "__main__":
    path, name, count = sys.argv[1:]
    for number in range(int(count)):
        spec = ModelSpec(ModelId(f"{name}-{number}"), Modality.TEXT, EngineKind.FAKE, "")
        Overlay(Path(path), None).put(spec)
