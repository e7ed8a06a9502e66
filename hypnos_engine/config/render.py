"""Writes a model as the `[[models]]` block that reads back to the same model; never touches a file."""

import json
from collections.abc import Iterable
from enum import StrEnum

from hypnos_engine.config.load import models_from_text
from hypnos_engine.config.model_settings import ARCH, IMAGE, MODELS
from hypnos_engine.config.setting import Table
from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.model import ModelId, ModelSpec

LONGEST_BLOCK = 64 * 1024
"""Characters of a block that are read at most: it may come from a client."""


def parse_model(text: str, source: str = "the block", named: ModelId | None = None) -> ModelSpec:
    """Return the model of one `[[models]]` block. Raises ConfigurationInvalid with every problem.

    `source` names the text in the problems. With `named` given that is the model's id, whatever the block says.
    """
    if len(text) > LONGEST_BLOCK:
        raise ConfigurationInvalid(f"{source} has {len(text)} characters; at most {LONGEST_BLOCK} are read.")
    models = models_from_text(text, source, named)
    if len(models) != 1:
        raise ConfigurationInvalid(f"{source} must hold exactly one [[models]] table; it holds {len(models)}.")
    return models[0]


def render_model(model: ModelSpec) -> str:
    """Return the block of a model, settings that have their default left out."""
    lines = [MODELS.heading, *_lines(MODELS, ((s.name, getattr(model, s.name)) for s in MODELS.settings))]
    if model.arch:
        lines += ["", ARCH.heading, *_lines(ARCH, model.arch)]
    if model.image is not None:
        values = ((s.name, getattr(model.image, s.name)) for s in IMAGE.settings)
        lines += ["", IMAGE.heading, *_lines(IMAGE, values)]
    return "\n".join(lines) + "\n"


def _lines(table: Table, values: Iterable[tuple[str, object]]) -> Iterable[str]:
    for name, value in values:
        setting = table.setting(name)
        if setting is None or (value == setting.default and not setting.required) or (name, value) in _EMPTY:
            continue
        yield f"{name} = {toml_value(value)}"


_EMPTY = frozenset({("weights_path", "")})
"""What a setting is when it was left out, where the declaration has no default."""


def toml_value(value: object) -> str:
    """Return a value as TOML writes it. Texts must be free of lone surrogates."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            plain = value.value if isinstance(value, StrEnum) else value
            return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple() | list():
            return "[" + ", ".join(toml_value(element) for element in value) + "]"
        case _:
            raise TypeError(f"no setting holds a {type(value).__name__}")
