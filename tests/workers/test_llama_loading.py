"""Files that cannot be served are typed errors that name the file; the process that met them is not needed again."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hypnos_engine.ipc import messages as m
from hypnos_engine.testing import tiny_gguf
from tests.workers.driver import Worker, chat


def _failure(path: Path, **options: object) -> m.LoadFailed:
    with Worker("llama") as worker:
        settings: dict[str, object] = {"context_len": 256, "slots": 1, **options}
        worker.send(m.Load("broken", str(path), **settings))  # type: ignore[arg-type]
        failed = worker.next_of(m.LoadFailed)
        assert not worker.all_of(m.Loaded)
        assert failed.code == "load_failed"
        assert str(path) in failed.message
        return failed


def _written(folder: Path, content: bytes) -> Path:
    path = folder / "file.gguf"
    path.write_bytes(content)
    return path


def test_a_truncated_file(tmp_path: Path, tiny: Mapping[str, Path]) -> None:
    content = tiny["llama"].read_bytes()
    failed = _failure(_written(tmp_path, content[: len(content) - 5000]))
    assert "not within the file bounds" in failed.message


def test_a_header_that_ends_too_early(tmp_path: Path, tiny: Mapping[str, Path]) -> None:
    assert "cannot be loaded" in _failure(_written(tmp_path, tiny["llama"].read_bytes()[:300])).message


@pytest.mark.parametrize("content", [b"", b"GG", b"garbage" * 1000, b"\x7fELF" + bytes(100)])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    assert "not a GGUF file" in _failure(_written(tmp_path, content)).message


def test_an_architecture_that_nobody_knows(tmp_path: Path, tiny: Mapping[str, Path]) -> None:
    content = tiny["llama"].read_bytes()
    name = b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama"
    assert content.count(name) == 1
    failed = _failure(_written(tmp_path, content.replace(name, name[:-5] + b"lluma")))
    assert "unknown model architecture: 'lluma'" in failed.message


def test_a_model_that_does_not_generate(tiny: Mapping[str, Path]) -> None:
    assert "(bert) has no KV cache" in _failure(tiny["encoder"]).message


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "no such file" in _failure(tmp_path / "missing.gguf").message
    assert "it is a folder" in _failure(tmp_path).message


def test_damaged_weights(tmp_path: Path) -> None:
    """The library loads weights that are no numbers without a word."""
    path = tmp_path / "file.gguf"
    tiny_gguf.write_llama(path)
    content = bytearray(path.read_bytes())
    content[-40_000:] = b"\xff\x7f" * 20_000  # half-precision NaN
    path.write_bytes(content)
    assert "damaged" in _failure(path).message


def test_a_context_beyond_the_memory(tiny: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.next_of(m.Hello)
        worker.limit_memory(2**31)
        worker.send(m.Load("tiny", str(tiny["llama"]), context_len=2**24, slots=1))
        assert "A context of 16777216 tokens (f16)" in worker.next_of(m.LoadFailed).message


@pytest.mark.parametrize(("context_len", "slots"), [(0, 1), (2**31, 1), (256, 0), (256, 257)])
def test_a_context_that_cannot_be(tiny: Mapping[str, Path], context_len: int, slots: int) -> None:
    with Worker("llama") as worker:
        worker.send(m.Load("tiny", str(tiny["llama"]), context_len=context_len, slots=slots))
        assert "'slots' must be 1 to 256" in worker.next_of(m.LoadFailed).message


def test_a_base_model_loads_and_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    tiny_gguf.write_llama(path, chat_template=None)
    with Worker("llama") as worker:
        assert not worker.load(path, context_len=256).has_chat_template
        failed = worker.ask(chat(1, "Hello")).failed
        assert failed is not None
        assert (failed.code, "base model" in failed.message) == ("invalid_request", True)


def test_a_template_that_refuses_is_the_requests_error(tmp_path: Path) -> None:
    path = tmp_path / "strict.gguf"
    tiny_gguf.write_llama(path, chat_template="{{ raise_exception('Roles must alternate!') }}")
    with Worker("llama") as worker:
        worker.load(path, context_len=256)
        failed = worker.ask(chat(1, "Hello")).failed
        assert failed is not None
        assert failed.code == "invalid_request"
        assert "Roles must alternate!" in failed.message


def test_weights_can_be_read_instead_of_mapped(tiny: Mapping[str, Path]) -> None:
    """§5-15."""
    modes = []
    for mode in ("mmap", "read"):
        with Worker("llama") as worker:
            modes.append(worker.load(tiny["llama"], context_len=256, load_mode=mode).phases.load_mode)
    assert modes == ["mmap", "read"]


def test_experts_may_stay_in_host_memory(tiny: Mapping[str, Path]) -> None:
    with Worker("llama") as worker:
        worker.load(tiny["moe"], context_len=256, cpu_expert_layers=1, gpu_layers=-1)
        assert worker.ask(chat(1, "Hello", max_tokens=3)).end.prompt_tokens > 0
