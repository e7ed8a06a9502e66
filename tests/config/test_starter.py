"""The configuration of a first start loads, finds the starter model and never replaces a file."""

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from hypnos_engine.config.load import load
from hypnos_engine.config.paths import write_new
from hypnos_engine.config.starter import STARTER_MODEL, model_roots, starter_folder, starter_text
from hypnos_engine.domain.errors import FolderUnusable
from hypnos_engine.domain.kinds import EngineKind, Modality, Tier


@pytest.mark.starter
def test_the_starter_configuration_serves_the_model_of_the_package(tmp_path: Path) -> None:
    folder = starter_folder()
    assert folder is not None
    path = tmp_path / "hypnos.toml"
    assert write_new(path, starter_text(tmp_path / 'models "ü" 🙂', folder))
    settings = load(path)
    assert settings.models == (STARTER_MODEL,)
    assert settings.models_dirs == (tmp_path / 'models "ü" 🙂',)
    assert model_roots(settings.models_dirs) == (tmp_path / 'models "ü" 🙂', folder)
    assert str(folder) not in path.read_text(encoding="utf-8"), "the package moves with the program"
    assert (folder / settings.models[0].weights_path).stat().st_size > 50_000_000
    assert settings.warnings == settings.without_effect == ()


def test_the_starter_model_is_the_one_of_the_design() -> None:
    assert (STARTER_MODEL.id, STARTER_MODEL.name) == ("smollm2:135m", "SmolLM2 135M Instruct")
    assert (STARTER_MODEL.modality, STARTER_MODEL.engine) == (Modality.TEXT, EngineKind.LLAMA)
    assert (STARTER_MODEL.context_len, STARTER_MODEL.slots, STARTER_MODEL.initial_tier) == (8192, 4, Tier.GPU)


def test_without_the_package_the_file_names_no_model(tmp_path: Path) -> None:
    path = tmp_path / "hypnos.toml"
    write_new(path, starter_text(tmp_path / "models"))
    settings = load(path)
    assert (settings.models, settings.models_dirs) == ((), (tmp_path / "models",))


def test_every_suggestion_in_the_comments_is_valid(tmp_path: Path) -> None:
    lines = starter_text(tmp_path / "models").splitlines()
    suggestions = (
        "# [[",
        "# port",
        "# host",
        "# api_keys",
        "# max_",
        "# tier",
        "# id",
        "# mod",
        "# engine",
        "# weights",
    )
    path = tmp_path / "hypnos.toml"
    path.write_text("\n".join(line.removeprefix("# ") if line.startswith(suggestions) else line for line in lines))
    settings = load(path)
    assert settings.models[0].id == "my-model"
    assert (settings.server.port, settings.hardware.tier2_bytes, len(settings.server.keys)) == (9999, 16 << 30, 1)


def test_a_new_file_is_private_and_an_existing_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "hypnos.toml"
    assert write_new(path, "ä")
    assert path.read_text("utf-8") == "ä"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not write_new(path, "other")
    assert path.read_text("utf-8") == "ä"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_to_nowhere_is_not_written_through(tmp_path: Path) -> None:
    path = tmp_path / "hypnos.toml"
    path.symlink_to(tmp_path / "elsewhere")
    assert not write_new(path, "x")
    assert not (tmp_path / "elsewhere").exists()


def _race(path: str, barrier: "multiprocessing.synchronize.Barrier", number: int) -> None:
    barrier.wait()
    os._exit(int(write_new(Path(path), str(number) * 100_000)))


def test_of_two_programs_that_write_at_once_one_wins_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "hypnos.toml"
    barrier = context.Barrier(3)
    writers = [context.Process(target=_race, args=(str(path), barrier, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert sorted(writer.exitcode or 0 for writer in writers) == [0, 0, 1]
    text = path.read_text()
    assert len(text) == 100_000
    assert len(set(text)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no" / "hypnos.toml", tmp_path / "file" / "hypnos.toml", tmp_path / ("x" * 300)):
        with pytest.raises(FolderUnusable, match="cannot be written"):
            write_new(path, "x")
