"""Which policies there are, by the names that people give; decides nothing else."""

from collections.abc import Sequence

from hypnos_engine.domain.model import ModelSpec
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.limits import Limits
from hypnos_engine.scheduler.simulation.policies import lemonade, llama_router, llama_swap, ollama
from hypnos_engine.scheduler.simulation.policies.policy import MakePolicy, Policy

OWN = "hypnos"


def _own(models: Sequence[ModelSpec], limits: Limits) -> Policy:
    return Scheduler(models, limits)


POLICIES: dict[str, MakePolicy] = {
    OWN: _own,
    "llama-swap": llama_swap.make_default,
    "llama-swap-groups": llama_swap.make_grouped,
    "ollama": ollama.make_default,
    "ollama-one-slot": ollama.make_one_slot,
    "llama-cpp-router": llama_router.make_default,
    "llama-cpp-router-fitted": llama_router.make_fitted,
    "lemonade": lemonade.make_default,
    "lemonade-scored": lemonade.make_scored,
}
"""The program's own scheduler first. What each of the others does stands in its module."""
