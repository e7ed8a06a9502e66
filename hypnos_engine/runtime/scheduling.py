"""Translates the settings into what the scheduler is told; decides nothing."""

from hypnos_engine.config.choices import HoldPolicy, Overload
from hypnos_engine.config.settings import Settings
from hypnos_engine.scheduler.limits import Limits


def limits_of(settings: Settings) -> Limits:
    """How long queues and waits may become."""
    limits, server = settings.limits, settings.server
    objective_ms = server.target_ms
    sheds = limits.overload is Overload.SHED and objective_ms is not None
    return Limits(
        max_queue_per_model=limits.max_queue_per_model,
        max_overtakes=limits.max_overtakes,
        max_overtaken_s=limits.max_overtaken_secs,
        shed_s=objective_ms / 1e3 if sheds and objective_ms is not None else None,
        hold_uses_cpu=settings.hardware.hold_policy is HoldPolicy.CPU,
    )
