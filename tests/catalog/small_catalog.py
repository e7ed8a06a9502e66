"""A catalog of a few lines, for tests that need certain sizes, digests and names."""

from pathlib import Path

from hypnos_engine.catalog.entries import Catalog
from hypnos_engine.catalog.reading import parse_catalog

HEAD = 'catalog_version = 1\ntested_architectures = ["llama", "qwen3"]\n'


def entry(
    name: str = "tiny:1m",
    files: str = '{ role = "weights", repo = "own/er", remote = "tiny.gguf", size_bytes = 4 }',
    *,
    extra: str = "",
    variants: str | None = None,
) -> str:
    """One `[[models]]` table; `files` are those of its only variant."""
    made = variants or f'[[models.variants]]\nquant = "Q8_0"\ndefault = true\nfiles = [ {files} ]\n'
    return (
        f'\n[[models]]\nid = "{name}"\nname = "Tiny"\npublisher = "Someone"\nlicense = "mit"\nsummary = "Small."\n'
        f'architecture = "llama"\nmodality = "text_generation"\nengine = "ggml_llama"\n{extra}\n{made}'
    )


def catalog_of(*entries: str) -> Catalog:
    return parse_catalog(HEAD + "".join(entries), "test.toml")


def write_catalog(path: Path, *entries: str) -> Path:
    path.write_text(HEAD + "".join(entries), encoding="utf-8")
    return path
