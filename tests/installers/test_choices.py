"""What set-up builds and installs, decided from facts that are handed in."""

import dataclasses
from pathlib import Path

import pytest

from installers import choices
from installers.choices import Backend, Machine
from installers.refusal import EXIT_USAGE, SetupRefused

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

BARE = Machine(
    system="Linux",
    platform_tag="linux-x86_64-glibc2.36",
    c_compiler="/usr/bin/c++",
    nvcc=None,
    cuda_devices=0,
    cuda_architectures=(),
    glslc=None,
    vulkan_headers=False,
    spirv_headers=False,
)
NVIDIA = dataclasses.replace(BARE, nvcc="/usr/local/cuda/bin/nvcc", cuda_devices=2, cuda_architectures=("86", "89"))
VULKAN = dataclasses.replace(BARE, glslc="/usr/bin/glslc", vulkan_headers=True, spirv_headers=True)
MAC = dataclasses.replace(BARE, system="Darwin", platform_tag="darwin-arm64")


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (BARE, Backend.CPU),
        (MAC, Backend.METAL),
        (NVIDIA, Backend.CUDA),
        (dataclasses.replace(NVIDIA, cuda_devices=0), Backend.CPU),
        (dataclasses.replace(NVIDIA, nvcc=None), Backend.CPU),
        (VULKAN, Backend.VULKAN),
        (dataclasses.replace(VULKAN, spirv_headers=False), Backend.CPU),
        (dataclasses.replace(VULKAN, vulkan_headers=False), Backend.CPU),
        (dataclasses.replace(VULKAN, nvcc="/usr/local/cuda/bin/nvcc", cuda_devices=1), Backend.CUDA),
    ],
)
def test_the_best_backend_that_can_be_built_here_is_chosen(machine: Machine, expected: Backend) -> None:
    assert choices.choose_backend(machine, None)[0] is expected


def test_a_named_backend_wins_over_what_was_found() -> None:
    assert choices.choose_backend(NVIDIA, "cpu")[0] is Backend.CPU


@pytest.mark.parametrize(
    ("machine", "wanted", "says"),
    [
        (BARE, "metal", "macOS"),
        (BARE, "cuda", "CUDA toolkit"),
        (BARE, "vulkan", "Vulkan SDK"),
        (MAC, "cpu", "hypnos.toml"),
    ],
)
def test_a_backend_that_cannot_be_built_is_refused_with_what_to_do(machine: Machine, wanted: str, says: str) -> None:
    with pytest.raises(SetupRefused, match=says):
        choices.choose_backend(machine, wanted)


def test_cuda_kernels_are_compiled_for_the_devices_here_and_the_processor_code_stays_portable() -> None:
    args = choices.cmake_args(NVIDIA, Backend.CUDA, native=False)
    assert "-DGGML_CUDA=ON" in args
    assert "-DCMAKE_CUDA_ARCHITECTURES=86;89" in args
    assert "-DGGML_NATIVE=OFF" in args


@pytest.mark.parametrize(
    ("backend", "flag"), [(Backend.METAL, "-DGGML_METAL=ON"), (Backend.VULKAN, "-DGGML_VULKAN=ON")]
)
def test_each_backend_switches_its_own_flag_on(backend: Backend, flag: str) -> None:
    assert flag in choices.cmake_args(BARE, backend, native=False)
    assert flag not in choices.cmake_args(BARE, Backend.CPU, native=False)


def test_own_cmake_arguments_come_last_and_keep_their_quotes() -> None:
    args = choices.cmake_args(BARE, Backend.CPU, native=True, extra='-DA="two words" -DGGML_NATIVE=OFF')
    assert args[-2:] == ("-DA=two words", "-DGGML_NATIVE=OFF")
    assert args[0] == "-DGGML_NATIVE=ON"


def test_builds_that_differ_in_anything_have_different_keys() -> None:
    builds = [
        choices.choose_build(BARE, "0.3.36", None, native=False),
        choices.choose_build(BARE, "0.3.36", None, native=True),
        choices.choose_build(BARE, "0.3.37", None, native=False),
        choices.choose_build(BARE, "0.3.36", None, native=False, extra_cmake="-DX=1"),
        choices.choose_build(dataclasses.replace(BARE, platform_tag="linux-aarch64"), "0.3.36", None, native=False),
        choices.choose_build(NVIDIA, "0.3.36", None, native=False),
        choices.choose_build(dataclasses.replace(NVIDIA, cuda_architectures=("89",)), "0.3.36", None, native=False),
    ]
    assert len({build.key for build in builds}) == len(builds)
    assert builds[0].key == choices.choose_build(VULKAN, "0.3.36", "cpu", native=False).key


@pytest.mark.parametrize(
    ("version", "fits"),
    [((3, 10), False), ((3, 11), True), ((3, 12), True), ((3, 13), True), ((3, 14), False), ((2, 7), False)],
)
def test_python_is_taken_from_the_versions_the_project_runs_on(version: tuple[int, int], fits: bool) -> None:
    assert choices.python_fits(version) is fits


def test_the_bounds_are_those_of_pyproject() -> None:
    low, high = choices.OLDEST_PYTHON, choices.FIRST_UNTRIED_PYTHON
    assert f'requires-python = ">={low[0]}.{low[1]},<{high[0]}.{high[1]}"' in PYPROJECT


def test_one_compile_job_needs_a_core_and_a_gigabyte() -> None:
    assert choices.compile_jobs(8, 16 * 2**30) == 8
    assert choices.compile_jobs(8, 3 * 2**30) == 3
    assert choices.compile_jobs(8, 2**29) == 1


def test_the_binding_is_pinned_exactly() -> None:
    assert choices.binding_version(PYPROJECT).count(".") == 2
    with pytest.raises(SetupRefused):
        choices.binding_version('[project.optional-dependencies]\ntext = ["llama-cpp-python>=0.3"]')


def test_the_extras_that_the_suite_needs_exist() -> None:
    assert choices.existing_extras(PYPROJECT) >= choices.TEST_EXTRAS


def test_parts_are_added_to_the_everyday_extras() -> None:
    existing = frozenset({"text", "desktop"})
    assert choices.choose_parts(["desktop"], existing, "1.0") == (existing, ())
    assert choices.choose_parts([], existing, "1.0") == (frozenset({"text"}), ())


def test_all_takes_what_exists_and_names_what_does_not() -> None:
    extras, left_out = choices.choose_parts(["all"], frozenset({"text", "desktop", "test", "voice"}), "1.0")
    assert extras == {"text", "desktop", "voice"}
    assert left_out == ("documents", "images", "entities")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["voice"], "Not part of Hypnos 1.0 yet: voice"),
        (["desktop", "images", "voice"], "yet: images, voice. This version has: desktop"),
        (["all", "voice"], "yet: voice"),
        (["torch"], "no part called 'torch'"),
        (["test"], "no part called 'test'"),
    ],
)
def test_a_part_that_this_version_does_not_have_is_refused_by_name(asked: list[str], says: str) -> None:
    with pytest.raises(SetupRefused, match=says) as refused:
        choices.choose_parts(asked, frozenset({"text", "desktop", "test"}), "1.0")
    assert refused.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("system", "release", "says"),
    [
        ("Linux", {"ID": "debian"}, "apt install build-essential"),
        ("Linux", {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt install build-essential"),
        ("Linux", {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install gcc gcc-c"),
        ("Linux", {"ID": "manjaro", "ID_LIKE": "arch"}, "pacman -S base-devel"),
        ("Linux", {"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper install"),
        ("Linux", {"ID": "alpine"}, "apk add build-base"),
        ("Linux", {}, "gcc and g"),
        ("Darwin", {}, "xcode-select --install"),
        ("Windows", {}, "winget install"),
    ],
)
def test_a_missing_compiler_is_one_sentence_with_the_command(system: str, release: dict[str, str], says: str) -> None:
    sentence = choices.no_compiler(system, release)
    assert says in sentence
    assert "\n" not in sentence


def test_a_python_without_venv_names_debians_package() -> None:
    assert "sudo apt install python3.12-venv" in choices.no_venv_module("Linux", {"ID_LIKE": "debian"}, (3, 12))
    assert "apt" not in choices.no_venv_module("Linux", {"ID": "fedora"}, (3, 12))


@pytest.mark.parametrize(
    ("system", "environment", "expected"),
    [
        ("Linux", {"DISPLAY": ":0"}, True),
        ("Linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("Linux", {"DISPLAY": ""}, False),
        ("Linux", {}, False),
        ("FreeBSD", {}, False),
        ("Darwin", {}, True),
        ("Windows", {}, True),
    ],
)
def test_windows_are_shown_where_there_is_a_display(system: str, environment: dict[str, str], expected: bool) -> None:
    assert choices.has_display(system, environment) is expected
