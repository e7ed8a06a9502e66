"""What measurements taught about the planner's errors; decides nothing and measures nothing.

An error belongs to a file and a context: kernels, page sizes and drivers differ, the rules of the planner do not.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from hypnos_engine.domain.memory import Footprint
from hypnos_engine.scheduler.footprint import with_peak

KEPT_CORRECTIONS = 1024


@dataclass(frozen=True, slots=True)
class Correction:
    """Bytes to add to a plan; negative where the planner assumed too much."""

    host_bytes: int = 0
    device_bytes: int = 0


NO_CORRECTION = Correction()


def correction(planned: Footprint, measured: Footprint) -> Correction:
    """Return what was missing in a plan that was not corrected. File pages are exact and no part of it.

    The device's own overhead is no part of it either: workers report what they allocated, not what opening it cost.
    """
    host = private_bytes(measured) - private_bytes(planned)
    return Correction(host, measured.device - planned.device if planned.device else 0)


def corrected(planned: Footprint, error: Correction) -> Footprint:
    """Return the plan with the error in it: the host's in the worker's own line, the device's in the device's."""
    device = max(planned.device + error.device_bytes, 0) if planned.device else 0
    # What the worker's own line cannot give, the others do not: they are promises of the library.
    anonymous = max(planned.anonymous + error.host_bytes, 0)
    transient_bytes = max(planned.peak - planned.total, 0)
    return with_peak(replace(planned, anonymous=anonymous, device=device), transient_bytes)


def error_fraction(planned: Footprint, measured: Footprint) -> float:
    """Return by how much a plan was wrong, as a fraction of what was measured: positive when it was too small."""
    actual = private_bytes(measured) + measured.file_pages + measured.device
    expected = private_bytes(planned) + planned.file_pages + planned.device
    return (actual - expected) / actual if actual else 0.0


def once_touched(planned: Footprint, measured: Footprint) -> Footprint:
    """Return what a worker will hold once its compute buffers were used.

    It reports right after its load, and pages that nobody has touched yet are not in its report.
    """
    missing = private_bytes(planned) - private_bytes(measured)
    untouched = min(max(missing, 0), planned.workspace)
    return replace(measured, anonymous=measured.anonymous + untouched)


@dataclass(slots=True)
class Corrections:
    """The latest correction for each file and context; the oldest are forgotten."""

    _known: "OrderedDict[tuple[str, int], Correction]" = field(default_factory=OrderedDict)

    def learn(
        self,
        weights_path: str,
        cells: int,
        planned: Footprint,
        measured: Footprint,
        used: Correction = NO_CORRECTION,
    ) -> None:
        """Remember a measurement. `used` is the correction that is in `planned` already."""
        rest = correction(planned, measured)
        total = Correction(used.host_bytes + rest.host_bytes, used.device_bytes + rest.device_bytes)
        self._known[weights_path, cells] = total
        self._known.move_to_end((weights_path, cells))
        while len(self._known) > KEPT_CORRECTIONS:
            self._known.popitem(last=False)

    def find(self, weights_path: str, cells: int) -> Correction:
        """Return the correction for this context, else the latest for the file, else none."""
        exact = self._known.get((weights_path, cells))
        if exact is not None:
            return exact
        of_file = (known for (path, _), known in reversed(self._known.items()) if path == weights_path)
        return next(of_file, NO_CORRECTION)


def private_bytes(footprint: Footprint) -> int:
    """Return what a worker has for itself alone of host memory."""
    return footprint.repacked + footprint.anonymous + footprint.kv + footprint.workspace + footprint.projector
