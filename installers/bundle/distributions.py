"""Decides which installed packages belong to the program: what it requires, and what those require in turn.

Reads metadata only; imports none of the packages.
"""

import importlib.metadata
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from installers.refusal import BuildRefused


def closure(root: str, extras: Iterable[str]) -> dict[str, Distribution]:
    """Installed distributions by canonical name: `root` with those extras and everything that this requires here.

    Raises BuildRefused when one is not installed.
    """
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in asked:
            continue
        asked.add((name, wanted))
        found[canonicalize_name(name)] = distribution = _installed(name)
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if _applies(requirement, wanted):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _installed(name: str) -> Distribution:
    try:
        return importlib.metadata.distribution(name)
    except PackageNotFoundError:
        raise BuildRefused(
            f"The package {name} belongs to the program and is not installed: run ./run.sh setup desktop first."
        ) from None


def modules_outside(kept: Iterable[str]) -> list[str]:
    """Top-level modules of all installed packages that are not `kept` (canonical names): tools of development."""
    names = set(kept)
    return sorted(
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if module.isidentifier() and not names & {canonicalize_name(owner) for owner in owners}
    )
