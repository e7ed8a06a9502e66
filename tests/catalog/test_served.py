"""The catalog, its blocks and untested files in a real engine."""

import hashlib
from pathlib import Path

import openai
import pytest

from hypnos_engine.catalog.blocks import config_block
from hypnos_engine.catalog.entries import CatalogFile, Role
from hypnos_engine.catalog.placing import bring_in
from hypnos_engine.catalog.platforms import this_platform
from hypnos_engine.testing import tiny_gguf
from tests.catalog.small_catalog import catalog_of, entry
from tests.e2e.engine_process import serving

HELLO = [{"role": "user", "content": "Hello"}]
UNTESTED = (
    '[[models]]\nid = "{0}"\nmodality = "text_generation"\nengine = "ggml_llama"\nweights_path = "mamba.gguf"\n{1}\n'
)


def test_a_pasted_block_runs_and_an_untested_file_needs_a_word(tmp_path: Path) -> None:
    """[§6.2-49]"""
    elsewhere = tmp_path / "another program" / "ü 🚀.gguf"
    elsewhere.parent.mkdir()
    tiny_gguf.write_llama(elsewhere)
    tiny_gguf.write_recurrent(tmp_path / "mamba.gguf")
    file = CatalogFile(Role.WEIGHTS, "own/er", "tiny.gguf", "tiny.gguf", size_bytes=elsewhere.stat().st_size)
    bring_in(elsewhere, tmp_path, file.local)
    listed = f'{{ role = "weights", repo = "own/er", remote = "tiny.gguf", size_bytes = {file.size_bytes} }}'
    tiny = catalog_of(entry(files=listed)).entries[0]
    config = tmp_path / "hypnos.toml"
    blocks = [
        config_block(tiny, tiny.default_variant, this_platform()),
        UNTESTED.format("refused", ""),
        UNTESTED.format("allowed", "allow_untested = true\ncontext_len = 512"),
    ]
    config.write_text(f'config_version = 1\nmodels_dir = "{tmp_path}"\n{"".join(blocks)}', encoding="utf-8")
    digest = hashlib.sha256(elsewhere.read_bytes()).hexdigest()
    with (
        serving(tmp_path / "home", "--config", str(config)) as engine,
        openai.OpenAI(base_url=f"{engine.address}/v1", api_key="any", max_retries=0) as client,
    ):
        catalog = engine.get("/v1/models/catalog")
        assert catalog["models_dir"] == str(tmp_path)
        assert len(catalog["data"]) >= 40
        for model in ("tiny:1m", "allowed"):
            assert client.chat.completions.create(model=model, messages=HELLO, max_tokens=2).choices  # type: ignore[arg-type]
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="refused", messages=HELLO, max_tokens=2)  # type: ignore[arg-type]
    assert refused.value.status_code == 503
    assert "allow_untested = true" in refused.value.message
    assert hashlib.sha256(elsewhere.read_bytes()).hexdigest() == digest
