"""Decides what set-up builds and installs from facts that are handed in; never looks at the machine itself."""

import hashlib
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from installers.refusal import EXIT_USAGE, SetupRefused

OLDEST_PYTHON = (3, 11)
FIRST_UNTRIED_PYTHON = (3, 14)

OPTIONAL_PARTS = ("desktop", "voice", "documents", "images", "entities")
"""Names that `./run.sh setup` knows; which of them exist is read from pyproject.toml."""
EVERYDAY_EXTRAS = frozenset({"text"})
APP_EXTRAS = EVERYDAY_EXTRAS | {"desktop"}
TEST_EXTRAS = frozenset({"text", "test", "lint", "desktop"})


class Backend(StrEnum):
    """What llama.cpp computes on."""

    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"


@dataclass(frozen=True)
class Machine:
    """What was found on this machine, as far as the choice of a build depends on it."""

    system: str
    """`Linux`, `Darwin` or `Windows`, as `platform.system()` says."""
    platform_tag: str
    """Operating system, processor and C library, as part of a file name."""
    c_compiler: str | None
    nvcc: str | None
    cuda_devices: int
    cuda_architectures: tuple[str, ...]
    """Compute capabilities of the devices here without the dot (`89`), sorted."""
    glslc: str | None
    vulkan_headers: bool
    spirv_headers: bool


@dataclass(frozen=True)
class Build:
    """One way to compile llama.cpp. Builds with equal keys are interchangeable."""

    version: str
    backend: Backend
    native: bool
    cmake_args: tuple[str, ...]
    platform_tag: str
    because: str
    """Why this backend, for a person."""

    @property
    def key(self) -> str:
        """Name of the folder that keeps the wheel. The binding's wheels fit every Python, so Python is not in it."""
        flags = hashlib.sha256("\0".join(self.cmake_args).encode()).hexdigest()[:8]
        code = "native" if self.native else "portable"
        return f"llama-cpp-python-{self.version}-{self.backend}-{self.platform_tag}-{code}-{flags}"


def has_display(system: str, environment: Mapping[str, str]) -> bool:
    """Whether windows can be shown to whoever starts the program; `system` as `platform.system()` says."""
    if system in ("Darwin", "Windows"):
        return True
    return any(environment.get(name) for name in ("WAYLAND_DISPLAY", "DISPLAY"))


def python_fits(version: tuple[int, ...]) -> bool:
    """Whether this project runs on a Python of that version."""
    return OLDEST_PYTHON <= tuple(version[:2]) < FIRST_UNTRIED_PYTHON


def choose_backend(machine: Machine, wanted: str | None) -> tuple[Backend, str]:
    """Return the backend and why.

    1. What the person named, if it can be built here.
    2. Metal on macOS.
    3. CUDA where its compiler and a device are.
    4. Vulkan where its whole SDK is.
    5. The CPU.
    """
    if wanted is not None:
        backend = Backend(wanted)
        _refuse_impossible(machine, backend)
        return backend, "asked for with --backend"
    if machine.system == "Darwin":
        return Backend.METAL, "this is macOS"
    if machine.nvcc and machine.cuda_devices:
        return Backend.CUDA, f"{machine.nvcc} and {machine.cuda_devices} NVIDIA device(s) found"
    if machine.nvcc:
        return Backend.CPU, "the CUDA compiler is here but no NVIDIA device is"
    if machine.glslc and machine.vulkan_headers and machine.spirv_headers:
        return Backend.VULKAN, "the Vulkan SDK was found"
    return Backend.CPU, "no GPU compiler found"


def _refuse_impossible(machine: Machine, backend: Backend) -> None:
    if backend is Backend.METAL and machine.system != "Darwin":
        raise SetupRefused("The metal backend exists only on macOS; leave --backend out.", exit_code=EXIT_USAGE)
    if backend is not Backend.METAL and machine.system == "Darwin":
        # The binding's own CMakeLists.txt switches Metal on by force on macOS.
        raise SetupRefused(
            'On macOS llama.cpp is always built with Metal; to compute on the CPU set [hardware] backend = "cpu" in '
            "hypnos.toml instead.",
            exit_code=EXIT_USAGE,
        )
    if backend is Backend.CUDA and not machine.nvcc:
        raise SetupRefused(
            "The cuda backend needs NVIDIA's compiler: install the CUDA toolkit and put its bin folder (nvcc) on PATH."
        )
    if backend is Backend.VULKAN and not (machine.glslc and machine.vulkan_headers and machine.spirv_headers):
        raise SetupRefused(
            "The vulkan backend needs the Vulkan SDK: on Debian and Ubuntu run "
            "`sudo apt install libvulkan-dev glslc spirv-headers`, elsewhere install LunarG's SDK."
        )


def cmake_args(machine: Machine, backend: Backend, *, native: bool, extra: str = "") -> tuple[str, ...]:
    """Return what the compile of llama.cpp is told; the person's own CMAKE_ARGS (`extra`) come last and win."""
    args = [f"-DGGML_NATIVE={'ON' if native else 'OFF'}"]
    # llama.cpp would link whatever TLS library it finds for downloads that this program never asks it for.
    args.append("-DLLAMA_OPENSSL=OFF")
    match backend:
        case Backend.CUDA:
            args.append("-DGGML_CUDA=ON")
            if machine.cuda_architectures:
                # Without this a portable build compiles its kernels for every generation, which takes an hour.
                args.append(f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(machine.cuda_architectures)}")
        case Backend.METAL:
            args.append("-DGGML_METAL=ON")
        case Backend.VULKAN:
            args.append("-DGGML_VULKAN=ON")
        case Backend.CPU:
            args += ["-DGGML_CUDA=OFF", "-DGGML_VULKAN=OFF"]
    return (*args, *shlex.split(extra))


def choose_build(machine: Machine, version: str, wanted: str | None, *, native: bool, extra_cmake: str = "") -> Build:
    """Return the build for this machine."""
    backend, because = choose_backend(machine, wanted)
    return Build(
        version=version,
        backend=backend,
        native=native,
        cmake_args=cmake_args(machine, backend, native=native, extra=extra_cmake),
        platform_tag=machine.platform_tag,
        because=because,
    )


def compile_jobs(cores: int, memory_bytes: int) -> int:
    """How many files to compile at once: one per core, but a gigabyte for each (the largest takes most of one)."""
    return max(1, min(cores, memory_bytes // 2**30))


def existing_extras(pyproject: str) -> frozenset[str]:
    """Names of the extras that pyproject.toml declares."""
    return frozenset(tomllib.loads(pyproject)["project"].get("optional-dependencies", {}))


def project_version(pyproject: str) -> str:
    """The version of this clone."""
    return str(tomllib.loads(pyproject)["project"]["version"])


def binding_version(pyproject: str) -> str:
    """The exactly pinned version of llama-cpp-python in the `text` extra."""
    for requirement in tomllib.loads(pyproject)["project"]["optional-dependencies"]["text"]:
        name, _, version = requirement.partition("==")
        if name.strip() == "llama-cpp-python" and version:
            return str(version).strip()
    raise SetupRefused("pyproject.toml does not pin llama-cpp-python exactly; this clone is damaged, clone it again.")


def choose_parts(
    asked: Iterable[str], existing: frozenset[str], version: str
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the extras to install for `setup PART...` and the parts that `all` left out because they do not exist."""
    names = list(asked)
    available = tuple(part for part in OPTIONAL_PARTS if part in existing)
    unknown = [name for name in names if name not in (*OPTIONAL_PARTS, "all")]
    if unknown:
        raise SetupRefused(
            f"There is no part called {unknown[0]!r}; choose from {', '.join(OPTIONAL_PARTS)} or all.",
            exit_code=EXIT_USAGE,
        )
    missing = [name for name in names if name != "all" and name not in existing]
    if missing:
        raise SetupRefused(
            f"Not part of Hypnos {version} yet: {', '.join(missing)}. This version has: {', '.join(available)}.",
            exit_code=EXIT_USAGE,
        )
    left_out = tuple(part for part in OPTIONAL_PARTS if part not in existing) if "all" in names else ()
    chosen = available if "all" in names else tuple(names)
    return EVERYDAY_EXTRAS | frozenset(chosen), left_out


def no_compiler(system: str, os_release: Mapping[str, str]) -> str:
    """One sentence that says how to get a C and C++ compiler on this system."""
    command = _compiler_command(system, os_release)
    return f"llama.cpp has to be compiled and there is no C and C++ compiler here: {command}."


def _compiler_command(system: str, os_release: Mapping[str, str]) -> str:
    if system == "Darwin":
        return "run `xcode-select --install`"
    if system == "Windows":
        return (
            "run `winget install Microsoft.VisualStudio.2022.BuildTools --override "
            '"--passive --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended"`'
        )
    family = f"{os_release.get('ID', '')} {os_release.get('ID_LIKE', '')}".split()
    for names, command in _COMPILER_COMMANDS:
        if names & set(family):
            return f"run `{command}`"
    return "install gcc and g++ (or clang) with your package manager"


_COMPILER_COMMANDS = (
    (frozenset({"debian", "ubuntu"}), "sudo apt install build-essential"),
    (frozenset({"fedora", "rhel", "centos"}), "sudo dnf install gcc gcc-c++"),
    (frozenset({"arch"}), "sudo pacman -S base-devel"),
    (frozenset({"suse", "opensuse"}), "sudo zypper install gcc gcc-c++"),
    (frozenset({"alpine"}), "sudo apk add build-base"),
)


def no_venv_module(system: str, os_release: Mapping[str, str], version: tuple[int, int]) -> str:
    """One sentence for a Python whose venv module cannot work (Debian splits it off)."""
    family = f"{os_release.get('ID', '')} {os_release.get('ID_LIKE', '')}".split()
    if system == "Linux" and {"debian", "ubuntu"} & set(family):
        return (
            f"This Python comes without its venv module: run `sudo apt install python{version[0]}.{version[1]}-venv`."
        )
    return "This Python comes without its venv and ensurepip modules: install a complete Python 3.11, 3.12 or 3.13."
