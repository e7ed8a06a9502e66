"""Writes the configuration that runs a variant of the catalog; touches no file."""

from dataclasses import replace

from hypnos_engine.catalog.entries import Entry, Platform, Role, Variant
from hypnos_engine.config.render import render_model
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.domain.model import ModelSpec

_FROM_FILE = "# Left out: read from the weights file."
_NOTHING = "# Nothing has to be stated here."


def model_of(entry: Entry, variant: Variant, platform: Platform) -> ModelSpec:
    """The model that a variant is, with everything that the entry does not say left to its default."""
    at = platform if variant.files_for(platform) else variant.files[0].platform  # where it runs at all
    spec = ModelSpec(
        id=entry.id,
        name=entry.name,
        modality=entry.modality,
        additional_modalities=entry.additional_modalities,
        engine=entry.engine_of(variant),
        weights_path=variant.named_file(Role.WEIGHTS, at) or "",
        aux_path=variant.named_file(Role.AUX, at),
        text_encoder_path=variant.named_file(Role.TEXT_ENCODER, at),
        tokenizer_path=variant.named_file(Role.TOKENIZER, at),
        voices_path=variant.named_file(Role.VOICES, at),
        image=entry.image,
    )
    return spec if entry.slots is None else replace(spec, slots=entry.slots)


def config_block(entry: Entry, variant: Variant, platform: Platform) -> str:
    """The `[[models]]` block that runs a variant; its paths are relative to the models folder (contract §6.2)."""
    arch = _FROM_FILE if entry.engine_of(variant) is EngineKind.LLAMA else _NOTHING
    return f"{heading(entry, variant)}{render_model(model_of(entry, variant, platform))}\n[models.arch]\n{arch}\n"


def heading(entry: Entry, variant: Variant) -> str:
    """The comment that says what a block runs, whose it is and what its licence restricts."""
    lines = [f"# {entry.name} ({variant.quant}), {entry.publisher}, license {entry.license}."]
    if entry.license_terms:
        lines.append(f"# {entry.license_terms}")
    return "\n".join(lines) + "\n"
