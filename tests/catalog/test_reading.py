"""What a catalog's file may hold, and how it is refused."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypnos_engine.catalog.choosing import choose
from hypnos_engine.catalog.entries import Catalog, PlannerNumbers, Platform, Role
from hypnos_engine.catalog.reading import LARGEST_BYTES, parse_catalog, read_catalog
from hypnos_engine.domain.errors import ConfigurationInvalid, InvalidRequest
from tests.catalog.small_catalog import HEAD, catalog_of, entry

WEIGHTS = '{ role = "weights", repo = "own/er", remote = "tiny.gguf", size_bytes = 4 }'


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationInvalid) as refused:
        parse_catalog(text, "test.toml")
    assert "test.toml" in refused.value.message
    return refused.value.message


def test_a_file_that_is_missing_is_no_catalog(tmp_path: Path) -> None:
    assert read_catalog(tmp_path / "models.catalog.toml") is None
    assert read_catalog(tmp_path / "a" / "b") is None


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"catalog_version = ", b"\x00", b"a = [" * 5000])
def test_what_is_no_toml_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "models.catalog.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationInvalid, match=r"models\.catalog\.toml"):
        read_catalog(path)


def test_a_folder_and_an_endless_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationInvalid, match="cannot be read"):
        read_catalog(tmp_path)
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(ConfigurationInvalid, match="larger than"):
        read_catalog(large)


@pytest.mark.parametrize("version", ["", "catalog_version = 2", 'catalog_version = "1"', "catalog_version = true"])
def test_another_version_is_refused_before_anything_else(version: str) -> None:
    assert "this program reads version 1" in refusal(f"{version}\nnonsense = 1\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (entry(extra="colour = 1"), "tiny:1m"),
        (entry(extra='stand_in = "nobody"'), "nobody"),
        (entry(files=WEIGHTS.replace("weights", "ballast")), "ballast"),
        (entry(files=WEIGHTS.replace("size_bytes = 4", "size_bytes = -4")), ">= 1"),
        (entry(files=WEIGHTS.replace("size_bytes = 4", 'sha256 = "abc"')), "sha256"),
        (entry(files=WEIGHTS.replace("size_bytes = 4", 'revision = "main"')), "revision"),
        (entry(files=WEIGHTS.replace("own/er", "http://plain")), "repo"),
        (entry(files=WEIGHTS.replace("tiny.gguf", "../tiny.gguf")), "tiny.gguf"),
        (entry(files=WEIGHTS.replace("size_bytes", 'local = "a/../../b", size_bytes')), "no path below"),
        (entry(files=WEIGHTS.replace("size_bytes", 'local = "/etc/passwd", size_bytes')), "local"),
        (entry(files=WEIGHTS.replace("size_bytes", 'local = "a//b", size_bytes')), "no path below"),
        (entry(files=WEIGHTS.replace("size_bytes", 'local = "b/", size_bytes')), "both end in /"),
        (entry(files=WEIGHTS.replace("tiny.gguf", "tiny*.gguf")), "pattern"),
        (entry(files=WEIGHTS.replace("size_bytes = 4", "about_bytes = 4")), "size of its default variant"),
        (entry(files=WEIGHTS.replace("4", "4, about_bytes = 4")), "exact or rounded"),
        (entry(files=WEIGHTS.replace("weights", "data")), "no weights"),
        (entry(files=WEIGHTS.replace("size_bytes", 'entry = "x", size_bytes')), "belongs to a folder"),
        (entry() + entry(), "stands twice"),
        (entry() + entry("other:1", WEIGHTS.replace("own/er", "else/where")), "another file is called"),
        (entry("last", extra="verified = false") + entry("b", WEIGHTS.replace("tiny", "b")), "before those"),
        (entry(extra='additional_modalities = ["text_generation"]'), "a modality stands twice"),
        (entry(variants=f'[[models.variants]]\nquant = "a"\nfiles = [ {WEIGHTS} ]\n'), "exactly one variant"),
        (entry().replace('architecture = "llama"', 'architecture = "mystery"'), "tested_architectures lacks"),
        ("models = 3\n", "models"),
    ],
)
def test_a_mistake_is_named_with_its_entry(text: str, says: str) -> None:
    assert says in refusal(HEAD + text)


def test_all_contradictions_are_reported_together() -> None:
    message = refusal(HEAD + entry(extra='stand_in = "nobody"') + entry("b", WEIGHTS.replace("own/er", "else/where")))
    assert "2 problems" in message


@given(st.text(max_size=300))
def test_any_text_is_a_catalog_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationInvalid):
        assert isinstance(parse_catalog(HEAD + text, "test.toml"), Catalog)


def test_a_file_is_called_as_it_is_in_its_repository() -> None:
    catalog = catalog_of(entry(files=WEIGHTS.replace("tiny.gguf", "deep/in/tiny.gguf")))
    assert catalog.entries[0].default_variant.files[0].local == "tiny.gguf"


def test_sizes_count_what_the_machine_needs() -> None:
    """[§6.2-24] [§6.2-25]"""
    files = ", ".join(
        [
            WEIGHTS,
            WEIGHTS.replace("tiny.gguf", "mac").replace("= 4", '= 100, platform = "macos-arm64"'),
            WEIGHTS.replace("tiny.gguf", "pc").replace("= 4", '= 1000, platform = "other"').replace("weights", "aux"),
        ]
    )
    variant = catalog_of(entry(files=files)).entries[0].default_variant
    assert variant.size_bytes(Platform.OTHER) == 1004
    assert variant.size_bytes(Platform.MACOS_ARM64) == 104
    assert variant.named_file(Role.AUX, Platform.OTHER) == "pc"
    assert variant.named_file(Role.AUX, Platform.MACOS_ARM64) is None


def test_a_spec_is_an_id_or_an_id_and_a_quant() -> None:
    """The id `a` hides in the spec of `a:b`, an exact id wins (A-53)."""
    catalog = catalog_of(entry("a", WEIGHTS), entry("a:Q8_0", WEIGHTS))
    assert choose(catalog, "a:Q8_0")[0].id == "a:Q8_0"
    assert choose(catalog, "a")[0].id == "a"
    assert choose(catalog, "a:Q8_0:q8_0")[1].quant == "Q8_0"
    with pytest.raises(InvalidRequest, match="It has Q8_0"):
        choose(catalog, "a:Q2")
    for unknown in ("", ":", "b", "b:Q8_0"):
        with pytest.raises(InvalidRequest, match="no entry"):
            choose(catalog, unknown)


def test_the_part_of_experts_follows_from_the_parameters() -> None:
    numbers = PlannerNumbers(
        parameters=25_200_000_000, active_parameters=3_800_000_000, expert_count=128, expert_used_count=8
    )
    assert numbers.expert_share == pytest.approx(0.906, abs=0.001)
    assert PlannerNumbers(parameters=10).expert_share == 0
