"""The shipped catalog, lineup, manifest and examples agree with the contract and with each other."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from hypnos_engine.catalog import manifest
from hypnos_engine.catalog.blocks import config_block, model_of
from hypnos_engine.catalog.choosing import choose
from hypnos_engine.catalog.entries import Capability, Entry, Platform, Role, Variant
from hypnos_engine.catalog.finding import CATALOG_NAME, EXAMPLE_NAMES, MANIFEST_NAME, resource
from hypnos_engine.config.load import load
from hypnos_engine.config.render import parse_model
from hypnos_engine.domain.kinds import EngineKind, Modality
from tests.catalog.shipped import shipped_catalog

CATALOG = shipped_catalog()
VARIANTS = [(entry, variant) for entry in CATALOG.entries for variant in entry.variants]
LINEUP = (
    *("gemma4:26b-q4", "gemma4:e4b-q4", "gemmaembedding2", "kokoro-82m-q4"),
    *("docling", "moss-image", "gliner2.5-multi"),
)
# What the contract names anywhere.
NAMED = (
    *LINEUP,
    *("lfm3:1.7b", "lfm3-vl:2b", "lfm3-audio:2b", "lfm3-omni:2b", "qwen3-tts:0.6b", "flux2-klein:4b"),
    *("nemotron3.5-bolt:e4b", "nemotron3.5-bolt:74b-a9b", "nemotron3.5-lightning:30b-a3b", "glm4.7-flash"),
    *("qwen3.5:4b", "qwen3.6:27b", "qwen3.8:27b", "qwen3-coder:30b-a3b", "minicpm-v:4.6", "lfm2.5:1.2b"),
)


def entry(name: str) -> Entry:
    found = CATALOG.entry(name)
    assert found is not None, name
    return found


def test_every_model_that_the_contract_names_is_there() -> None:
    assert [name for name in NAMED if CATALOG.entry(name) is None] == []


def test_there_are_forty_verified_entries_and_all_modalities() -> None:
    verified = [one for one in CATALOG.entries if one.verified]
    assert len(verified) >= 40
    assert {modality for one in CATALOG.entries for modality in one.modalities} == set(Modality)
    recommendable = Counter(
        modality for one in verified for modality in one.modalities if one.is_recommendable(one.default_variant, _OTHER)
    )
    assert set(Modality) - set(recommendable) == {Modality.ENTITIES}  # no size of such a model is known to the byte


_OTHER = Platform.OTHER


@pytest.mark.parametrize("budget_bytes", [2 * 2**30, 4 * 2**30, 8 * 2**30, 24 * 2**30])
def test_every_size_of_machine_finds_something_to_talk_to(budget_bytes: int) -> None:
    for modality in (Modality.TEXT, Modality.VISION, Modality.EMBEDDINGS, Modality.SPEECH_TO_TEXT):
        fitting = [
            one.id
            for one in CATALOG.entries
            for variant in one.variants
            if modality in one.modalities
            and one.is_recommendable(variant, _OTHER)
            and variant.size_bytes(_OTHER) < 0.8 * budget_bytes
        ]
        assert fitting, modality


def test_the_facts_of_lfm3_vl_are_those_of_the_contract() -> None:
    """[§6.2-50] [§6.2-51] [§6.2-52]"""
    lfm = entry("lfm3-vl:2b")
    assert (lfm.name, lfm.publisher, lfm.license) == ("LFM3-VL 2B", "Liquid AI", "lfm1.0")
    assert (lfm.architecture, lfm.engine, lfm.lineup) == ("lfm3", EngineKind.LLAMA, False)
    assert (lfm.modality, lfm.additional_modalities) == (Modality.VISION, (Modality.TEXT,))
    assert lfm.capabilities == (Capability.THINKING,)
    variant = lfm.default_variant
    assert (variant.quant, variant.size_bytes(_OTHER)) == ("Q8_0", 2225234528)
    weights, aux = variant.files
    assert (weights.role, weights.repo, weights.remote, weights.local, weights.size_bytes) == (
        Role.WEIGHTS,
        "LiquidAI/LFM3-VL-2B-GGUF",
        "LFM3-VL-2B-Q8_0.gguf",
        "LFM3-VL-2B-Q8_0.gguf",
        1846238496,
    )
    assert aux.role is Role.AUX
    assert choose(CATALOG, "lfm3-vl:2b:Q4_K_M")[1].quant == "Q4_K_M"


@pytest.mark.parametrize("spec", ["gemma4:26b-q4:Q4_0", "lfm3-audio:2b:Q8_0", "kokoro-82m-q4:fp32", "docling:int8"])
def test_the_specs_that_the_contract_shows_exist(spec: str) -> None:
    """[§6.3-44]"""
    chosen, variant = choose(CATALOG, spec)
    assert f"{chosen.id}:{variant.quant}" == spec
    assert variant is chosen.default_variant


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("gemma4:26b-q4", True),
        ("gemma4:e2b-q4", True),
        ("nemotron3.5-bolt:e4b", True),
        ("qwen3.5:0.8b", True),
        ("qwen3.6:35b-a3b", True),
        ("qwen3.8:27b", True),
        ("minicpm-v:4.6", True),
        ("qwen3-coder:30b-a3b", True),
        ("nemotron3.5-lightning:30b-a3b", True),
        ("glm4.7-flash", True),
        ("lfm3:1.7b", True),
        ("lfm3-audio:2b", True),
        ("lfm2.5:1.2b", False),
        ("lfm2.5:8b-a1b", False),
        ("lfm2.5-vl:1.6b", False),
    ],
)
def test_tools_are_where_the_contract_has_them(name: str, tools: bool) -> None:
    """[§7.5-30] to [§7.5-37]"""
    assert (Capability.TOOLS in entry(name).capabilities) is tools


def test_the_stand_in_of_the_newest_embedder_loads_in_older_builds() -> None:
    newest = entry("gemmaembedding2")
    assert (newest.stand_in, newest.oldest_build) == ("embeddinggemma:300m", 11457)
    assert entry("embeddinggemma:300m").modality is newest.modality


def test_only_flux2_edits_pictures() -> None:
    assert [one.id for one in CATALOG.entries if one.image and one.image.edit] == ["flux2-klein:4b"]


def test_licences_that_restrict_use_say_how() -> None:
    silent = {"apache-2.0", "mit", "openmdw-1.1", "apache-2.0 and mit"}
    assert [one.id for one in CATALOG.entries if one.license not in silent and not one.license_terms] == []


def test_architectures_of_ggufs_are_tested_ones() -> None:
    """[§6.2-08] [§6.2-11]"""
    used = {one.architecture for one in CATALOG.entries if one.engine is EngineKind.LLAMA}
    assert used == set(CATALOG.tested_architectures)
    assert {"gemma4", "gemma-embedding2", "lfm3"} <= used


def test_what_a_verified_entry_counts_is_pinned_by_a_digest_or_at_least_sized() -> None:
    for one, variant, file in CATALOG.files():
        if one.verified and variant.default and file.role in (Role.WEIGHTS, Role.AUX, Role.TEXT_ENCODER):
            assert file.size_bytes is not None, (one.id, file.remote)
        assert not (one.verified and file.is_pattern), one.id
        assert file.size_bytes is None or file.size_bytes > 20_000, (one.id, file.local)


def test_every_entry_says_where_its_facts_are_from() -> None:
    assert [one.id for one in CATALOG.entries if not one.sources] == []


@pytest.mark.parametrize("platform", list(Platform)[1:])
@pytest.mark.parametrize(("one", "variant"), VARIANTS, ids=[f"{one.id}:{variant.quant}" for one, variant in VARIANTS])
def test_every_block_loads_as_the_model_it_was_made_from(one: Entry, variant: Variant, platform: Platform) -> None:
    """[§6.2-45] [§6.2-46] [§6.2-47]"""
    block = config_block(one, variant, platform)
    assert parse_model(block) == model_of(one, variant, platform)
    first = block.splitlines()[0]
    assert first.startswith("# ")
    assert all(part in first for part in (one.name, variant.quant, one.publisher, one.license))
    assert "[models.arch]" in block
    assert not Path(model_of(one, variant, platform).weights_path).is_absolute()


def test_all_blocks_together_are_one_configuration(tmp_path: Path) -> None:
    config = tmp_path / "hypnos.toml"
    blocks = (config_block(one, one.default_variant, _OTHER) for one in CATALOG.entries)
    config.write_text("config_version = 1\n" + "\n".join(blocks), encoding="utf-8")
    assert [model.id for model in load(config).models] == [one.id for one in CATALOG.entries]


# --- lineup, manifest, examples -------------------------------------------------------------------------------------


def test_the_lineup_is_that_of_the_contract() -> None:
    """[§6.1-11] to [§6.1-18], [§6.2-16]"""
    assert tuple(one.id for one in CATALOG.lineup()) == LINEUP
    serves = {str(one.id): one.modalities for one in CATALOG.lineup()}
    assert serves["gemma4:26b-q4"] == (Modality.TEXT, Modality.VISION)
    assert set(serves["gemma4:e4b-q4"]) == {Modality.SPEECH_TO_TEXT, Modality.TEXT, Modality.VISION}
    assert serves["gemmaembedding2"] == (Modality.EMBEDDINGS,)
    assert serves["kokoro-82m-q4"] == (Modality.TEXT_TO_SPEECH,)
    assert serves["moss-image"] == (Modality.IMAGES,)
    assert serves["docling"] == (Modality.DOCUMENTS,)
    assert serves["gliner2.5-multi"] == (Modality.ENTITIES,)


def test_the_manifest_lists_the_lineup() -> None:
    """[§6.2-17] [§19-29]"""
    text = resource(MANIFEST_NAME).read_text("utf-8")
    assert text == manifest.render(CATALOG), "run: python -m hypnos_engine.catalog.manifest > resources/models.manifest"
    lines = manifest.parse(text)
    assert lines == tuple(manifest.lines_of(CATALOG))
    assert {line.spec.rpartition(":")[0] for line in lines} == set(LINEUP)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        (EXAMPLE_NAMES[0], {*LINEUP}),
        (EXAMPLE_NAMES[1], {"lfm3:1.7b", "lfm3-vl:2b", "lfm3-audio:2b", *LINEUP} - {"gemma4:26b-q4", "gemma4:e4b-q4"}),
    ],
)
def test_an_example_runs_the_default_variants(name: str, ids: set[str]) -> None:
    """[§6.1-19] [§19-30] [§19-31]"""
    settings = load(resource(name))
    platform = Platform.MACOS_ARM64 if "macos" in name else Platform.OTHER
    assert {model.id for model in settings.models} == ids
    chosen = ("modality", "weights_path", "aux_path", "text_encoder_path", "tokenizer_path", "voices_path", "engine")
    for model in settings.models:
        expected = model_of(entry(model.id), entry(model.id).default_variant, platform)
        for field in (*chosen, "name", "additional_modalities", "image", "slots"):
            assert getattr(model, field) == getattr(expected, field), (model.id, field)
    assert settings.warnings == ()


def test_the_default_26b_has_three_slots() -> None:
    """[§19-26]"""
    settings = load(resource(EXAMPLE_NAMES[0]))
    assert next(model.slots for model in settings.models if model.id == "gemma4:26b-q4") == 3


def test_the_schema_describes_the_file() -> None:
    from hypnos_engine.catalog.schema import CatalogTable

    schema = msgspec.json.schema(CatalogTable)
    assert {"FileRow", "VariantRow", "EntryRow"} <= set(schema["$defs"])
    assert resource(CATALOG_NAME).is_file()
