"""Tests of the runtime that take `loop_factory` run on every loop."""

from tests.loops import loop_factory

__all__ = ["loop_factory"]
