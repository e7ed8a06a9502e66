"""Tells which of the catalog's platforms this machine is; knows nothing else about it."""

import platform

from hypnos_engine.catalog.entries import Platform


def this_platform() -> Platform:
    """Apple Silicon, or anything else."""
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return Platform.MACOS_ARM64 if apple else Platform.OTHER
