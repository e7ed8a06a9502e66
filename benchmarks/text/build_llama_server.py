"""Builds llama.cpp's own server from the sources inside llama-cpp-python, with the flags of the installed binding.

`python -m benchmarks.text.build_llama_server` prints the path of the program; it is kept in the user's cache folder, by
version and flags. Must never give a program of other sources or other flags than those that Hypnos computes with.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from installers.choices import binding_version
from installers.wheelhouse import cache_folder, write_whole

ROOT = Path(__file__).resolve().parents[2]
_RECORD = "build.json"
_SOURCES = "vendor/llama.cpp/"
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_CURL=OFF",
    # The page that the server shows in a browser would be fetched while building.
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


@dataclass(frozen=True)
class LlamaServer:
    """A built server."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "llama-server"

    @property
    def templates(self) -> list[Path]:
        """The chat templates that llama.cpp keeps as samples of real models, by name."""
        return sorted((self.folder / "templates").glob("*.jinja"))

    def environment(self) -> dict[str, str]:
        """An environment in which the server computes with the very libraries that Hypnos computes with."""
        ours = _binding_libraries()
        return {**os.environ, "LD_LIBRARY_PATH": f"{ours}:{self.program.parent}", "GGML_NO_BACKTRACE": "1"}


def built() -> LlamaServer | None:
    """The server that fits the installed binding, if it was built before."""
    server = LlamaServer(_folder())
    return server if (server.folder / _RECORD).is_file() and server.program.is_file() else None


def build(jobs: int) -> LlamaServer:
    """Return the server that fits the installed binding, compiling it when it is not kept (minutes)."""
    found = built()
    if found is not None:
        return found
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        _compile(Path(work), folder, jobs)
    record = {"version": _version(), "flags": [*_binding_flags(), *_FLAGS]}
    write_whole(folder / _RECORD, json.dumps(record, indent=2) + "\n")  # last: without it the folder is unfinished
    return LlamaServer(folder)


def _version() -> str:
    return binding_version((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _binding_flags() -> list[str]:
    """What the installed binding was compiled with."""
    record = json.loads((Path(sys.prefix) / "hypnos-build.json").read_text(encoding="utf-8"))
    return [str(flag) for flag in record["cmake_args"]]


def _binding_libraries() -> Path:
    import llama_cpp

    return Path(str(llama_cpp.__file__)).parent / "lib"


def _folder() -> Path:
    flags = hashlib.sha256("\0".join((*_binding_flags(), *_FLAGS)).encode()).hexdigest()[:8]
    return cache_folder(os.environ) / "llama-server" / f"{_version()}-{flags}"


def _compile(work: Path, folder: Path, jobs: int) -> None:
    requirement = f"llama-cpp-python=={_version()}"
    pip = [sys.executable, "-m", "pip"]
    _run([*pip, "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", str(work), requirement])
    source = _unpack(next(work.glob("llama_cpp_python-*.tar.gz")), work / "source")
    cmake, ninja = _tools(work, pip)
    tree = work / "build"
    flags = [*_FLAGS, *_binding_flags(), f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    _run([cmake, "-S", str(source), "-B", str(tree), "-G", "Ninja", *flags])
    _run([cmake, "--build", str(tree), "--target", "llama-server", "-j", str(jobs)])
    for name in ("bin", "templates"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(tree / "bin", folder / "bin", symlinks=True)
    shutil.copytree(source / "models" / "templates", folder / "templates")


def _unpack(archive: Path, to: Path) -> Path:
    with tarfile.open(archive) as packed:
        wanted = [member for member in packed.getmembers() if f"/{_SOURCES}" in member.name]
        packed.extractall(to, members=wanted, filter="data")
    return next(to.iterdir()) / _SOURCES


def _tools(work: Path, pip: Sequence[str]) -> tuple[str, str]:
    """CMake and Ninja: those of this machine, else the package index's."""
    found = shutil.which("cmake"), shutil.which("ninja")
    if found[0] and found[1]:
        return found[0], found[1]
    _run([*pip, "install", "--target", str(work / "tools"), "cmake", "ninja"])
    return str(work / "tools" / "bin" / "cmake"), str(work / "tools" / "bin" / "ninja")


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def main() -> int:
    """Entry point; returns the exit code."""
    print(build(jobs=os.cpu_count() or 1).program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
