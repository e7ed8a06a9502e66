"""Finds the model that is measured when no other is named; must not fetch anything."""

from pathlib import Path

from hypnos_engine.config.starter import STARTER_MODEL, starter_folder


def starter_model() -> Path:
    """The starter model's file. Ends the program with a sentence when it is not installed."""
    folder = starter_folder()
    if folder is None:
        raise SystemExit("The starter model is not installed: name a GGUF file with --model.")
    return folder / STARTER_MODEL.weights_path
