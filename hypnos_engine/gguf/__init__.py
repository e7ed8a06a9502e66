"""Reads what a GGUF file says about its model, from its header alone; never maps it, never trusts a number in it."""

from hypnos_engine.gguf.header import Array, Header, LongText, Tensor, Value, read_header
from hypnos_engine.gguf.shape import model_files, read_shape

__all__ = ["Array", "Header", "LongText", "Tensor", "Value", "model_files", "read_header", "read_shape"]
