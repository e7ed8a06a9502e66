"""Says where the catalog and the example configurations lie, in a clone, a wheel or a frozen program; opens none."""

import sys
from pathlib import Path

import hypnos_engine

CATALOG_NAME = "models.catalog.toml"
MANIFEST_NAME = "models.manifest"
EXAMPLE_NAMES = ("hypnos.example.toml", "hypnos.lfm3.macos.example.toml")


def resource(name: str) -> Path:
    """Where a shipped file is expected; it may be missing.

    A file of that name beside the frozen program wins, so that its owner can give it another catalog. Otherwise it is
    inside the package in a wheel and beside it in a clone.
    """
    if getattr(sys, "frozen", False):
        beside = Path(sys.executable).parent / name
        if beside.is_file():
            return beside
    package = Path(hypnos_engine.__file__).parent
    inside = package / "resources"
    return (inside if inside.is_dir() else package.parent / "resources") / name
