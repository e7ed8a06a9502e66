"""Decides how tokens are drawn: the chain of samplers of one request. Must never build a chain that cannot select."""

import math
import os

import llama_cpp.llama_cpp as lib

from hypnos_engine.domain.errors import EngineFailed, InvalidRequest
from hypnos_engine.ipc import messages as m
from hypnos_engine.workers.llama import native

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 40, 0.95, 0.05
"""What llama.cpp's own programs use when nothing is said."""

_KEEP_AT_LEAST = 1
_COLDEST, _HOTTEST = 1e-3, 1e4
"""Below, the likeliest token is all that is left; above, single precision overflows."""
_RANDOM_SEED = 0xFFFFFFFF
"""The library takes this value as "any seed"; a client that sends it wants the same text again nevertheless."""


def check(sampling: m.Sampling) -> None:
    """Raise InvalidRequest for values that no sampler can work with."""
    for name, value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if value is not None and (not math.isfinite(value) or value < 0):
            raise InvalidRequest(f"'{name}' must be a number of at least 0, not {value}.")


class Chain:
    """The samplers of one request; `free` must be called once it ends."""

    def __init__(self, sampling: m.Sampling) -> None:
        self.pointer: native.Pointer = None
        """None for a request that always takes the likeliest token: that needs no sampler."""
        if sampling.temperature is not None and sampling.temperature < _COLDEST:
            return
        self.pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if not self.pointer:
            raise EngineFailed("llama.cpp could not make a sampler.")
        for sampler in _samplers(sampling):
            lib.llama_sampler_chain_add(self.pointer, sampler)

    def free(self) -> None:
        """Give the samplers back; harmless when done before."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            lib.llama_sampler_free(pointer)


def _samplers(sampling: m.Sampling) -> list[native.Pointer]:
    top_k = TOP_K if sampling.top_k is None else min(max(sampling.top_k, 0), 2**31 - 1)  # 0 keeps all tokens
    top_p = TOP_P if sampling.top_p is None else min(sampling.top_p, 1.0)
    temperature = TEMPERATURE if sampling.temperature is None else min(sampling.temperature, _HOTTEST)
    return [
        lib.llama_sampler_init_top_k(top_k),
        lib.llama_sampler_init_top_p(top_p, _KEEP_AT_LEAST),
        lib.llama_sampler_init_min_p(MIN_P, _KEEP_AT_LEAST),
        lib.llama_sampler_init_temp(temperature),
        lib.llama_sampler_init_dist(_seed(sampling.seed)),
    ]


def _seed(seed: int | None) -> int:
    if seed is None:
        return int.from_bytes(os.urandom(4), "little") % _RANDOM_SEED
    folded = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    return folded if folded != _RANDOM_SEED else _RANDOM_SEED - 1
