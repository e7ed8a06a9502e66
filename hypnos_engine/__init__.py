"""Hypnos' engine: one local server for many models, moved between GPU memory, RAM and disk."""

__version__ = "0.1.0"
