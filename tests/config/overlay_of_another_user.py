"""Tries to write an overlay as a user who may only read its folder; prints the refusal, or `written`."""

import os
import sys
from pathlib import Path

from hypnos_engine.config.overlay import Overlay
from hypnos_engine.domain.errors import FolderUnusable
from hypnos_engine.domain.kinds import EngineKind, Modality
from hypnos_engine.domain.model import ModelId, ModelSpec

if __name__ == "__main__":
    overlay = Overlay(Path(sys.argv[1]), None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        overlay.put(ModelSpec(ModelId("a"), Modality.TEXT, EngineKind.FAKE, ""))
        print("written")
    except FolderUnusable as error:
        print(error.message)
