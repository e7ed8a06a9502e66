"""Which program a worker is, and what of the person's environment it may see."""

import sys
from pathlib import Path

import pytest

from hypnos_engine.domain.errors import ModelNotAvailable
from hypnos_engine.domain.kinds import EngineKind
from hypnos_engine.engines.registry import EngineRegistry
from hypnos_engine.engines.runtimes import (
    USES_GPU,
    WorkerRuntime,
    bundle_runtime,
    default_runtime,
    environment_of,
    worker_environment,
)
from hypnos_engine.ipc.programs import Program


@pytest.mark.parametrize(
    "name",
    [
        "HYPNOS_API_KEYS",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "GITHUB_TOKEN",
        "OPENAI_API_KEY",
        "openai_api_key",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DJANGO_SECRET",
        "PGPASSWORD",
        "DB_PASSWD",
        "AZURE_CREDENTIALS",
        "SSH_AUTH_SOCK",
        "SIGNING_KEY",
        "GITHUB_PAT",
        "PYTHONINSPECT",
        "PYTHONSTARTUP",
    ],
)
def test_secrets_and_traps_are_withheld(name: str) -> None:
    assert name not in worker_environment({name: "x", "PATH": "/bin"}, EngineKind.LLAMA, 1)


@pytest.mark.parametrize(
    "value", ["https://someone:pw@proxy:3128", "sk-abc123", "hf_abcdef", "ghp_abcdef", "postgres://u:p@db/x"]
)
def test_values_that_are_secrets_are_withheld_whatever_they_are_called(value: str) -> None:
    assert value not in worker_environment({"HARMLESS": value}, EngineKind.LLAMA, 1).values()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/someone"),
        ("LD_LIBRARY_PATH", "/opt/cuda/lib64"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONPATH", "/src"),
        ("XDG_CACHE_HOME", "/home/someone/.cache"),
        ("http_proxy", "http://proxy:3128"),
        ("TOKENIZERS_CACHE", "/x"),
        ("KEYBOARD", "de"),
        ("SystemRoot", "C:\\Windows"),
    ],
)
def test_what_a_program_needs_is_kept(name: str, value: str) -> None:
    assert worker_environment({name: value}, EngineKind.LLAMA, 1)[name] == value


def test_libraries_are_offline_and_quiet_whatever_the_parent_says() -> None:
    parent = {"HF_HUB_OFFLINE": "0", "GOMP_SPINCOUNT": "infinity", "OMP_NUM_THREADS": "64"}
    environment = worker_environment(parent, EngineKind.LLAMA, 2)
    expected = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "GOMP_SPINCOUNT": "300",
        "GGML_NO_BACKTRACE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    assert expected.items() <= environment.items()
    assert parent["OMP_NUM_THREADS"] == "64"


@pytest.mark.parametrize("kind", list(EngineKind))
def test_only_engines_that_use_the_gpu_see_it(kind: EngineKind) -> None:
    environment = worker_environment({"CUDA_VISIBLE_DEVICES": "1"}, kind, 1)
    assert environment["CUDA_VISIBLE_DEVICES"] == ("1" if kind in USES_GPU else "")


def test_threads_that_libraries_start_of_themselves_are_capped() -> None:
    caps = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert caps.items() <= worker_environment({"OMP_NUM_THREADS": "64"}, EngineKind.ONNX, 2).items()


def test_an_engine_that_is_told_its_threads_starts_none_of_its_own_accord() -> None:
    environment = worker_environment({"VECLIB_MAXIMUM_THREADS": "1"}, EngineKind.LLAMA, 8)
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert "VECLIB_MAXIMUM_THREADS" not in environment  # it would hold the engine's own wish down


def test_a_thread_cap_is_at_least_one() -> None:
    assert worker_environment({}, EngineKind.ONNX, 0)["OMP_NUM_THREADS"] == "1"


def test_a_runtime_adds_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPNOS_API_KEYS", "secret")
    runtime = WorkerRuntime("pack", ("/pack/bin/python",), frozenset(), (("PACK_HOME", "/pack"),))
    environment = environment_of(runtime, EngineKind.DOCLING, 1)
    assert environment["PACK_HOME"] == "/pack"
    assert "HYPNOS_API_KEYS" not in environment


def test_the_default_runtime_is_this_interpreter() -> None:
    command = default_runtime().command(EngineKind.LLAMA, 123)
    assert command[0] == sys.executable
    assert command[-5:] == [Program.WORKER.value, "--kind", "ggml_llama", "--parent", "123"]


def test_a_packaged_program_starts_its_second_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hypnos-worker.exe" if sys.platform == "win32" else "hypnos-worker"
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert default_runtime().argv == (str(Path(sys.executable).parent / name),)
    assert bundle_runtime(Path("bundle")).argv == (str(Path("bundle", name)),)


def test_the_registry_makes_what_the_runtimes_can_run() -> None:
    registry = EngineRegistry()
    assert registry.kinds == {EngineKind.LLAMA, EngineKind.FAKE}
    for kind in registry.kinds:
        assert registry.make("tiny", kind).kind is kind


def test_an_engine_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModelNotAvailable, match=r"'parrot' needs the engine 'docling'.*fake, ggml_llama"):
        EngineRegistry().make("parrot", EngineKind.DOCLING)
