"""`hypnos models`: what it brings, lists, checks and removes, with and without an engine."""

import json
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from hypnos_engine.catalog.choosing import choose
from hypnos_engine.catalog.shelf import Shelf
from hypnos_engine.cli import models
from hypnos_engine.testing.local_hub import Fault, LocalHub, local_hub
from tests.catalog.download_bench import content
from tests.cli.conftest import Hypnos

SIZE = 300_000
SPEC = "own/er/m.gguf"
ENTRY = "docling"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        made.repository("own/er", **{"m.gguf": content(SIZE)})
        yield made


def config(hypnos: Hypnos, hub: LocalHub, more: str = "") -> tuple[str, str]:
    path = hypnos.home / "chosen.toml"
    folder = json.dumps(str(hypnos.home / "models"))
    path.write_text(f'config_version = 1\nmodels_dir = {folder}\n[downloads]\nhub = "{hub.address}"\n{more}', "utf-8")
    return "--config", str(path)


def test_a_model_without_an_action_is_pulled() -> None:
    """[§19-36]"""
    assert models.with_action(["models", "a:b"]) == ["models", "pull", "a:b"]
    assert models.with_action(["models", "rm", "a:b"]) == ["models", "rm", "a:b"]
    assert models.with_action(["models", "--help"]) == ["models", "--help"]
    assert models.with_action(["models"]) == ["models"]


def test_a_pull_without_an_engine(hypnos: Hypnos, hub: LocalHub) -> None:
    """[§19-36]"""
    done = hypnos.run("models", SPEC, *config(hypnos, hub))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{SPEC} is here" in done.stdout
    assert (hypnos.home / "models" / "m.gguf").read_bytes() == content(SIZE)
    again = hypnos.run("models", "pull", SPEC, *config(hypnos, hub))
    assert again.returncode == 0
    assert hub.sent_bytes == SIZE


def test_a_pull_with_an_engine_is_the_engines(hypnos: Hypnos, hub: LocalHub, free_port: Callable[[], int]) -> None:
    flags = config(hypnos, hub, '[server]\napi_keys = ["secret"]\n')
    hypnos.start("serve", *flags, "--port", str(free_port()))
    done = hypnos.run("models", "pull", SPEC, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert (hypnos.home / "models" / "m.gguf").read_bytes() == content(SIZE)


def test_an_interrupted_pull_leaves_no_process_and_goes_on_later(hypnos: Hypnos, hub: LocalHub) -> None:
    hub.faults.append(Fault(hold_at=SIZE // 2))
    flags = config(hypnos, hub)
    process = hypnos.launch("models", "pull", SPEC, *flags)
    assert hub.held.acquire(timeout=60)
    children = psutil.Process(process.pid).children()
    assert children
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (130, "")
    assert "run the same command again" in said
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert hypnos.run("models", "pull", SPEC, *flags).returncode == 0
    assert (hypnos.home / "models" / "m.gguf").read_bytes() == content(SIZE)


def test_a_pull_that_cannot_be_says_why(hypnos: Hypnos, hub: LocalHub) -> None:
    hub.repository("shut/away", **{"m.gguf": b"abc"}).gated = True
    failed = hypnos.run("models", "pull", "shut/away/m.gguf", *config(hypnos, hub))
    assert failed.returncode == 1
    assert "gated" in failed.stdout
    unknown = hypnos.run("models", "pull", "no-such-model", *config(hypnos, hub))
    assert unknown.returncode == 2
    assert "no entry" in unknown.stderr


def test_what_is_here_is_listed_checked_and_removed(hypnos: Hypnos, hub: LocalHub) -> None:
    shelf = Shelf((hypnos.home / "models",))
    _, variant = choose(shelf.catalog(), ENTRY)
    files = variant.files_for(shelf.platform)
    for file in files:
        path = shelf.roots[0] / file.local
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"another file")
    flags = config(hypnos, hub)
    listed = hypnos.run("models", "list", *flags)
    assert f"{ENTRY}:{variant.quant}" in listed.stdout
    assert "outdated" in listed.stdout
    checked = hypnos.run("models", "verify", ENTRY, *flags)
    assert checked.returncode == 1
    assert checked.stdout.count("and not the listed") == len(files)
    using = f"""[[models]]
id = "d"
modality = "document_conversion"
engine = "docling"
weights_path = "{files[0].local}"
"""
    kept = hypnos.run("models", "rm", ENTRY, *config(hypnos, hub, using))
    assert kept.returncode == 2
    assert "--force" in kept.stderr
    removed = hypnos.run("models", "rm", ENTRY, *config(hypnos, hub))
    assert removed.returncode == 0, removed.stderr
    assert not any((shelf.roots[0] / file.local).exists() for file in files)
    assert "No model" in hypnos.run("models", "list", *config(hypnos, hub)).stdout
    assert hub.requests == []


def test_a_file_that_was_damaged_or_lost_after_its_download_is_found(hypnos: Hypnos, hub: LocalHub) -> None:
    shelf = Shelf((hypnos.home / "models",))
    entry, variant = next(
        (entry, variant)
        for entry in shelf.catalog().entries
        for variant in entry.variants
        if [file.sha256 is not None and file.size_bytes is None for file in variant.files_for(shelf.platform)] == [True]
    )
    (file,) = variant.files_for(shelf.platform)
    path = shelf.roots[0] / file.local
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    spec = f"{entry.id}:{variant.quant}"
    damaged = hypnos.run("models", "verify", spec, *config(hypnos, hub))
    assert (damaged.returncode, "is damaged" in damaged.stdout) == (1, True)
    path.unlink()
    missing = hypnos.run("models", "verify", spec, *config(hypnos, hub))
    assert (missing.returncode, "missing" in missing.stdout) == (1, True)
