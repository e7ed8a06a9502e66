"""A model that is written as a block reads back as the same model."""

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from hypnos_engine.config.model_settings import ARCH
from hypnos_engine.config.render import LONGEST_BLOCK, parse_model, render_model
from hypnos_engine.domain.errors import ConfigurationInvalid
from hypnos_engine.domain.kinds import Drafts, EngineKind, KvType, LoadMode, Modality, MoeOffload, Priority, Tier
from hypnos_engine.domain.model import ImageDefaults, ModelId, ModelSpec

ANY = st.characters(exclude_categories=("Cs", "Cc"))
IDS = st.text(ANY, min_size=1, max_size=20).filter(lambda text: not any(char.isspace() for char in text))
TITLES = st.text(ANY, min_size=1, max_size=20).filter(str.strip)
FILES = TITLES.filter(lambda text: ".." not in text)
ARCHES = st.dictionaries(st.sampled_from([s.name for s in ARCH.settings]), st.integers(1, 10**9), max_size=4)
IMAGES = st.builds(ImageDefaults, st.none() | st.integers(1, 100), st.none() | st.floats(0, 100), st.booleans())

MODELS = st.builds(
    ModelSpec,
    id=IDS.map(ModelId),
    modality=st.sampled_from(Modality),
    engine=st.sampled_from([EngineKind.MLX, EngineKind.ONNX, EngineKind.FAKE]),
    weights_path=FILES,
    name=TITLES | st.just(""),
    additional_modalities=st.lists(st.sampled_from(Modality), unique=True, max_size=3).map(tuple),
    aux_path=st.none() | FILES,
    text_encoder_path=st.none() | FILES,
    tokenizer_path=st.none() | FILES,
    voices_path=st.none() | FILES,
    context_len=st.none() | st.integers(256, 1 << 26),
    slots=st.integers(1, 256),
    kv_type=st.sampled_from(KvType),
    draft=st.sampled_from(Drafts),
    initial_tier=st.sampled_from(Tier),
    priority=st.sampled_from(Priority),
    keep_warm_in_ram=st.booleans(),
    moe_offload=st.sampled_from(MoeOffload),
    min_gpu_layer_ratio=st.floats(0, 1),
    load_mode=st.sampled_from(LoadMode),
    share_worker=st.booleans(),
    allow_untested=st.booleans(),
    enabled=st.booleans(),
    arch=ARCHES.map(lambda numbers: tuple(sorted(numbers.items()))),
    image=st.none(),
) | st.builds(
    ModelSpec,
    id=IDS.map(ModelId),
    modality=st.just(Modality.IMAGES),
    engine=st.just(EngineKind.DIFFUSION),
    weights_path=FILES,
    image=IMAGES,
)


@settings(deadline=None)
@given(model=MODELS)
def test_a_block_reads_back_as_the_same_model(model: ModelSpec) -> None:
    text = render_model(model)
    assert parse_model(text) == model
    assert tomlkit.parse(text).unwrap()["models"][0]["id"] == model.id


def test_the_contracts_block_is_read() -> None:
    """§6.4-14, §6.4-18: an empty [models.arch] leaves every number to the file."""
    text = (
        '[[models]]\nid = "my-model"\nmodality = "text_generation"\nengine = "ggml_llama"\n'
        'weights_path = "my-model-Q4_K_M.gguf"\n[models.arch]\n'
    )
    expected = ModelSpec(
        id=ModelId("my-model"), modality=Modality.TEXT, engine=EngineKind.LLAMA, weights_path="my-model-Q4_K_M.gguf"
    )
    assert parse_model(text) == expected
    assert render_model(expected) == text.removesuffix("[models.arch]\n")


def test_the_demonstration_engine_needs_no_weights() -> None:
    model = ModelSpec(id=ModelId("demo"), modality=Modality.TEXT, engine=EngineKind.FAKE, weights_path="")
    assert parse_model(render_model(model)) == model


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must hold exactly one"),
        ("x = 1", "the block:1: x: there is no such setting"),
        ("[server]\nport = 1", "the block:1: server: there is no such setting"),
        ("[[models]]\nid = 1", "the block:2: models.id: expected a model id"),
        ("[[models]", "the block:1: column 9: this is not TOML"),
        ("#" * (LONGEST_BLOCK + 1), "at most 65536 are read"),
        ("a" + ".a" * 32_000 + " = 1", "the block:1: a name with more than 64 parts is no setting"),
    ],
)
def test_what_is_not_one_block_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        parse_model(text)
    assert problem in str(caught.value)


def test_two_blocks_are_refused() -> None:
    block = render_model(ModelSpec(id=ModelId("a"), modality=Modality.TEXT, engine=EngineKind.FAKE, weights_path=""))
    with pytest.raises(ConfigurationInvalid, match="it holds 2"):
        parse_model(block + block.replace('"a"', '"b"'))
