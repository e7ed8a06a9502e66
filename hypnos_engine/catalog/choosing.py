"""Finds the entry and the variant that `<id>[:<quant>]` names; looks at no file."""

from hypnos_engine.catalog.entries import Catalog, Entry, Variant
from hypnos_engine.config.problems import closest, shown_text
from hypnos_engine.domain.errors import InvalidRequest


def choose(catalog: Catalog, spec: str) -> tuple[Entry, Variant]:
    """Return what a spec names: an exact id wins, otherwise the last colon parts the id from the quant.

    Without a quant it is the default variant. Raises InvalidRequest, which names what there is.
    """
    name = spec.strip()
    entry = catalog.entry(name)
    if entry is not None:
        return entry, entry.default_variant
    front, colon, quant = name.rpartition(":")
    entry = catalog.entry(front) if colon else None
    if entry is None:
        near = closest(name, [entry.id for entry in catalog.entries])
        hint = f" Did you mean {near}?" if near else ""
        raise InvalidRequest(
            f"The catalog has no entry {shown_text(name)}.{hint} `hypnos catalog list` shows all of them."
        )
    variant = entry.variant(quant)
    if variant is None:
        quants = ", ".join(variant.quant for variant in entry.variants)
        raise InvalidRequest(f"{entry.id} has no variant {shown_text(quant)}. It has {quants}.")
    return entry, variant
