"""`hypnos catalog` and `hypnos --catalog-block`, run as a person runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hypnos_engine.catalog.blocks import config_block
from hypnos_engine.catalog.choosing import choose
from hypnos_engine.catalog.platforms import this_platform
from hypnos_engine.cli import command_line
from tests.catalog.shipped import shipped_catalog
from tests.catalog.small_catalog import entry, write_catalog
from tests.catalog.small_hub import Repo, small_hub

VOICES = ("af_heart", "af_bella", "af_sarah", "am_michael", "am_adam")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hypnos.toml"
    folder = json.dumps(str(tmp_path / "models"))
    path.write_text(f"config_version = 1\nmodels_dir = {folder}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["--catalog-block", "lfm3-vl:2b:Q4_K_M"],
        ["--catalog-block=lfm3-vl:2b:Q4_K_M"],
        ["catalog", "block", "lfm3-vl:2b:q4_k_m"],
    ],
)
def test_a_block_is_that_of_the_catalog(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """[§6.2-48] [§19-34]"""
    assert command_line.run(arguments) == 0
    chosen = choose(shipped_catalog(), "lfm3-vl:2b:Q4_K_M")
    assert capsys.readouterr().out == config_block(*chosen, this_platform())


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["--catalog-block", "lfm3-vl:2"]) != 0
    assert "Did you mean lfm3-vl:2b?" in capsys.readouterr().err
    assert command_line.run(["--catalog-block"]) == command_line.EXIT_USAGE


def test_the_list_shows_sizes_and_what_is_here(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "models" / "gemma-3-270m-it-qat-Q4_0.gguf"
    weights.parent.mkdir()
    weights.write_bytes(b"short")
    assert command_line.run(["catalog", "list", "--config", str(config)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line and line[0].isalpha()}
    assert "outdated" in lines["gemma3:270m"]
    assert "0.24 GB" in lines["gemma3:270m"]
    assert lines["lfm3:1.7b"].split()[1] == "?"


def test_the_list_is_readable_for_programs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["catalog", "list", "--json", "--modality", "vision", "--config", str(config)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"gemma4:26b-q4", "smolvlm:256m"} <= {one["id"] for one in told["data"]}
    assert all("vision" in one["modalities"] for one in told["data"])
    assert command_line.run(["catalog", "list", "--modality", "sight", "--config", str(config)]) != 0


def test_a_check_finds_what_is_wrong_on_disk(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["catalog", "check", "--config", str(config)]) == 0
    weights = tmp_path / "models" / "gemma-3-270m-it-qat-Q4_0.gguf"
    weights.parent.mkdir()
    weights.write_bytes(b"short")
    assert command_line.run(["catalog", "check", "--config", str(config)]) == 1
    assert "gemma3:270m:Q4_0: gemma-3-270m-it-qat-Q4_0.gguf has another size" in capsys.readouterr().out


def test_a_check_asks_the_hub_that_is_named(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The shipped catalog is replaced: its plain addresses lie outside of this machine."""
    write_catalog(tmp_path / "models.catalog.toml", entry())
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "hypnos"))
    with small_hub() as hub:
        hub.repos["own/er", "main"] = Repo({"tiny.gguf": (4, None)})
        arguments = ["catalog", "check", "--config", str(config), "--online", "--endpoint", hub.address]
        assert command_line.run(arguments) == 0
        hub.repos["own/er", "main"] = Repo({"tiny.gguf": (5, None)})
        assert command_line.run(arguments) == 1
    assert "tiny:1m:Q8_0 tiny.gguf: 5 bytes, the catalog says 4" in capsys.readouterr().out


def test_files_of_another_program_are_taken_over(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in VOICES:  # their sizes are listed, and digests that these do not have
        (elsewhere / f"{name}.bin").write_bytes(bytes(522240))
    assert command_line.run(["catalog", "adopt", "kokoro-82m-q4:q8", str(elsewhere), "--config", str(config)]) == 1
    assert "kokoro-82m/voices/af_heart.bin was not found." in capsys.readouterr().out
    smol = choose(shipped_catalog(), "smollm2:360m")[1].files[0]
    assert smol.sha256 is None
    assert smol.size_bytes is not None
    with (elsewhere / smol.remote).open("wb") as sparse:
        sparse.truncate(smol.size_bytes)
    assert command_line.run(["catalog", "adopt", "smollm2:360m", str(elsewhere), "--config", str(config)]) == 0
    assert (tmp_path / "models" / smol.local).samefile(elsewhere / smol.remote)


def test_neither_the_server_nor_the_list_imports_the_client_of_the_hub() -> None:
    program = (
        "import sys, hypnos_engine.daemon, hypnos_engine.catalog.drift, hypnos_engine.cli.catalog\n"
        "assert not {'huggingface_hub', 'httpx', 'requests'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
