"""The `[[models]]` table: which names fill a domain `ModelSpec`; declares, checks nothing across settings."""

from typing import Any

from hypnos_engine.config.kinds import Choice, Kind, Many, Number, Size, Switch, Whole
from hypnos_engine.config.names import MODEL_FILE, MODEL_ID, TITLE
from hypnos_engine.config.setting import Setting, Table, default_of
from hypnos_engine.domain.kinds import Drafts, EngineKind, KvType, LoadMode, Modality, MoeOffload, Priority, Tier
from hypnos_engine.domain.model import ImageDefaults, ModelSpec

_SIZE: Kind[int] = Size()
_COUNT: Kind[int] = Whole(1, 10**9)


def _model(name: str, kind: Kind[object], help: str, **rest: Any) -> Setting:  # noqa: A002 - the word of the table
    return Setting(name=name, kind=kind, default=default_of(ModelSpec, name), help=help, **rest)


def _image(name: str, kind: Kind[object], help: str, **rest: Any) -> Setting:  # noqa: A002
    return Setting(name=name, kind=kind, default=default_of(ImageDefaults, name), help=help, **rest)


def make_arch(**values: int | None) -> tuple[tuple[str, int], ...]:
    """Return the numbers that were given as sorted pairs."""
    return tuple(sorted((name, value) for name, value in values.items() if value is not None))


def make_model(*, arch: tuple[tuple[str, int], ...] | None, weights_path: str | None, **values: Any) -> ModelSpec:
    """Make the domain value of a `[[models]]` table."""
    return ModelSpec(arch=arch or (), weights_path=weights_path or "", **values)


ARCH = Table(
    path="models.arch",
    help="Numbers for the planner that stand in for what the weights file does not say.",
    build=make_arch,
    settings=tuple(
        Setting(name=name, kind=kind, help=sentence, unit=unit, unset="read from the file")
        for name, kind, sentence, unit in (
            ("num_layers", _COUNT, "Transformer blocks.", ""),
            ("num_kv_heads", _COUNT, "Heads of the KV cache in each block.", ""),
            ("head_dim", _COUNT, "Elements of one head.", ""),
            ("context_train", _COUNT, "Tokens that the model was trained to attend to.", "tokens"),
            ("vocabulary_size", _COUNT, "Tokens of the vocabulary.", "tokens"),
            ("weights_bytes", _SIZE, "All weights.", "bytes"),
            ("expert_bytes", _SIZE, "The experts' part of the weights.", "bytes"),
            ("kv_bytes_per_token", _SIZE, "KV cache of one token, all blocks together.", "bytes"),
        )
    ),
)

IMAGE = Table(
    path="models.image",
    help="What an image model does when the request does not say.",
    build=ImageDefaults,
    settings=(
        _image("steps", Whole(1, 100), "Denoising steps.", unset="the engine's own"),
        _image("cfg_scale", Number(0, 100), "Guidance scale.", unset="the engine's own"),
        _image("edit", Switch(), "Whether the model edits pictures."),
    ),
)

MODELS = Table(
    path="models",
    help="One model. Paths are relative to the models folders.",
    repeated=True,
    build=make_model,
    settings=(
        _model("id", MODEL_ID, "Name by which requests ask for the model.", required=True, effective=True),
        _model("name", TITLE, "Name for people.", unset="the id", effective=True),
        _model("modality", Choice(Modality), "What the model is mainly for.", required=True, effective=True),
        _model("additional_modalities", Many(Choice(Modality)), "What else it is for.", effective=True),
        _model("engine", Choice(EngineKind), "What runs the model.", required=True, effective=True),
        _model(
            "weights_path",
            MODEL_FILE,
            "Weights file, or the folder of a model that has one. May be left out with the engine `fake`.",
            effective=True,
        ),
        _model("aux_path", MODEL_FILE, "Second weights file, such as a vision projector.", unset="none"),
        _model("text_encoder_path", MODEL_FILE, "Text encoder of an image model.", unset="none"),
        _model("tokenizer_path", MODEL_FILE, "Tokenizer, where the weights do not hold it.", unset="none"),
        _model("voices_path", MODEL_FILE, "Voices of a speech model: a folder or one file.", unset="none"),
        _model(
            "context_len",
            Whole(16, 1 << 26),
            "Tokens of context across all slots.",
            unit="tokens",
            unset="chosen from the model and the machine",
            effective=True,
        ),
        _model("slots", Whole(1, 256), "Requests that the model works on at once.", effective=True),
        _model("kv_type", Choice(KvType), "Element type of the KV cache.", effective=True),
        _model(
            "draft",
            Choice(Drafts),
            "Whether a text model guesses tokens from what stood earlier in the text and checks several at once, while "
            "that is measured to be faster. Not for requests with a `seed`; in others a near tie of two tokens may "
            "fall the other way, as in the company of other requests.",
            effective=True,
        ),
        _model(
            "initial_tier",
            Choice(Tier),
            "Where the model is brought when the server starts.",
            effective=True,
        ),
        _model("priority", Choice(Priority), "How long the model stays when memory is short.", effective=True),
        _model(
            "keep_warm_in_ram",
            Switch(),
            "Whether the weights stay in host memory when the model leaves tier 1.",
            effective=True,
        ),
        _model(
            "moe_offload",
            Choice(MoeOffload),
            "Whether the CPU computes experts of a Mixture-of-Experts model.",
            effective=True,
        ),
        _model(
            "min_gpu_layer_ratio",
            Number(0, 1),
            "Smallest part of the layers that must be on the GPU for the model to load.",
            effective=True,
        ),
        _model("load_mode", Choice(LoadMode), "How weights reach memory: mapped, or read into it.", effective=True),
        _model("share_worker", Switch(), "Whether small models of one kind may share a process."),
        _model(
            "allow_untested",
            Switch(),
            "Whether an architecture may be loaded that the catalog does not list.",
            effective=True,
        ),
        _model("enabled", Switch(), "Whether the model is in service.", effective=True),
    ),
    tables=(ARCH, IMAGE),
)
