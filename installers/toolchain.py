"""Looks at the machine: compilers, GPU toolkits and devices; decides nothing and changes nothing."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from installers.choices import Machine

_PROBE_TIMEOUT_S = 15.0


def look_at_machine(environment: Mapping[str, str]) -> Machine:
    """Return what the choice of a build depends on. Starts short-lived probes (`nvidia-smi`, `xcode-select`) only."""
    system = platform.system()
    nvcc = find_nvcc(environment)
    devices, architectures = (0, ()) if system == "Darwin" else find_cuda_devices()
    sdk = environment.get("VULKAN_SDK")
    return Machine(
        system=system,
        platform_tag=platform_tag(),
        c_compiler=find_compiler(system, environment),
        nvcc=nvcc,
        cuda_devices=devices,
        cuda_architectures=architectures,
        glslc=_which("glslc", [Path(sdk, "bin"), Path(sdk, "Bin")] if sdk else []),
        vulkan_headers=_any_exists("vulkan/vulkan.h", _include_folders(sdk)),
        spirv_headers=_any_exists("spirv/unified1/spirv.hpp", _include_folders(sdk)),
    )


def platform_tag() -> str:
    """Operating system, processor and C library of this interpreter, fit for a file name."""
    library, version = platform.libc_ver() if platform.system() == "Linux" else ("", "")
    parts = [platform.system().lower(), platform.machine().lower(), f"{library}{version}"]
    return re.sub(r"[^a-z0-9._-]+", "", "-".join(part for part in parts if part))


def find_compiler(system: str, environment: Mapping[str, str]) -> str | None:
    """Path of a C++ compiler that works with a C compiler beside it; None when one of both is missing."""
    if system == "Darwin" and _run(["xcode-select", "-p"]) is None:
        return None  # /usr/bin/cc exists without the tools, and asks for them in a window
    if system == "Windows":
        return shutil.which("cl") or _visual_studio(environment)
    c = _first([environment.get("CC"), "cc", "gcc", "clang"])
    cxx = _first([environment.get("CXX"), "c++", "g++", "clang++"])
    return cxx if c else None


def compiler_version(compiler: str) -> str:
    """First line of `--version`, or the path when it has none."""
    answer = _run([compiler, "--version"])
    return answer.splitlines()[0].strip() if answer and answer.strip() else compiler


def find_nvcc(environment: Mapping[str, str]) -> str | None:
    """Path of NVIDIA's compiler: on PATH, under CUDA_HOME or CUDA_PATH, or where the toolkit goes by default."""
    roots = [environment[name] for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    return _which("nvcc", [Path(root, "bin") for root in (*roots, "/usr/local/cuda")])


def find_cuda_devices() -> tuple[int, tuple[str, ...]]:
    """Return how many NVIDIA devices there are and the distinct architectures of those that say theirs."""
    smi = shutil.which("nvidia-smi")
    listed = _run([smi, "-L"]) if smi else None
    count = sum(line.startswith("GPU ") for line in (listed or "").splitlines())
    if not count:
        count = sum(1 for path in Path("/dev").glob("nvidia[0-9]*"))
    if not count or not smi:
        return count, ()
    answer = _run([smi, "--query-gpu=compute_cap", "--format=csv,noheader"]) or ""
    return count, read_architectures(answer)


def read_architectures(answer: str) -> tuple[str, ...]:
    """`8.9` per line, as nvidia-smi prints compute capabilities, to sorted distinct names like `89`."""
    found = {line.strip().replace(".", "") for line in answer.splitlines() if re.fullmatch(r"\d+\.\d", line.strip())}
    return tuple(sorted(found, key=int))


def os_release() -> Mapping[str, str]:
    """What Linux says about its distribution; empty elsewhere."""
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release()
    return {}


def memory_bytes() -> int:
    """Bytes of RAM; 4 GiB where the system does not say."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 * 2**30


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _visual_studio(environment: Mapping[str, str]) -> str | None:
    root = environment.get("ProgramFiles(x86)", r"C:\Program Files (x86)")
    vswhere = Path(root, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    if not vswhere.is_file():
        return None
    tools = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    answer = _run([str(vswhere), "-products", "*", "-requires", tools, "-property", "installationPath"])
    return answer.strip().splitlines()[0] if answer and answer.strip() else None


def _include_folders(sdk: str | None) -> list[Path]:
    folders = [Path("/usr/include"), Path("/usr/local/include")]
    return [*(Path(sdk, name) for name in ("include", "Include")), *folders] if sdk else folders


def _any_exists(name: str, folders: list[Path]) -> bool:
    return any((folder / name).is_file() for folder in folders)


def _which(name: str, folders: list[Path]) -> str | None:
    found = shutil.which(name)
    for folder in folders:
        found = found or shutil.which(name, path=str(folder))
    return found


def _first(names: list[str | None]) -> str | None:
    for name in names:
        if not name or not name.strip():
            continue
        # CC may carry flags ("gcc -m64"): then its first word is the program.
        found = shutil.which(name) or shutil.which(name.split()[0])
        if found:
            return found
    return None


def _run(command: list[str]) -> str | None:
    """Output of a probe; None when it is missing, fails or takes too long."""
    try:
        answer = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
