"""Everything that was packaged has its licence text, and what has none stops the build by name."""

import importlib.metadata
import sysconfig
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from installers.bundle import licences
from installers.bundle.licences import Owners, owners_of, texts_of
from installers.refusal import BuildRefused

PACKAGES = Path(sysconfig.get_path("purelib"))
LGPL = "GNU LESSER GENERAL PUBLIC LICENSE"


@pytest.fixture
def common(tmp_path: Path) -> Path:
    """A stand-in for the system's folder of licence texts, which other systems do not have."""
    folder = tmp_path / "common-licenses"
    folder.mkdir()
    (folder / "LGPL-3").write_text(LGPL, encoding="utf-8")
    (folder / "GPL-3").write_text("GNU GENERAL PUBLIC LICENSE", encoding="utf-8")
    return folder


def installed(folder: Path, name: str, metadata: str = "", **files: str) -> Distribution:
    """A distribution made of a few files."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}\n", encoding="utf-8")
    record = [f"{info.name}/METADATA,,"]
    for file, text in files.items():
        path = folder / file.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        record.append(f"{path.relative_to(folder)},,")
    (info / "RECORD").write_text("\n".join(record) + "\n", encoding="utf-8")
    return importlib.metadata.Distribution.at(info)


def test_files_are_sorted_by_who_they_belong_to(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.so"
    files = [str((PACKAGES / "msgspec" / "__init__.py").resolve()), str(licences.__file__), str(stranger)]
    owners = owners_of(files, Path(licences.__file__).resolve().parents[2])
    assert owners.distributions == {"msgspec"}
    assert owners.unknown == [str(stranger)]


def test_texts_come_with_the_package(tmp_path: Path) -> None:
    info = installed(tmp_path, "one", **{"one-1.0.dist-info__licenses__LICENSE": "free", "one__LICENSES.py": "no"})
    assert texts_of(info, tmp_path) == {"LICENSE": "free"}


def test_a_package_that_only_names_its_licence_gets_the_systems_text(tmp_path: Path, common: Path) -> None:
    info = installed(tmp_path, "qt", "License: LGPL-3.0-only OR GPL-2.0-only")
    texts = texts_of(info, common)
    assert texts["LGPL-3.txt"] == LGPL
    assert "LGPL-3.0-only OR GPL-2.0-only" in texts["README.txt"]
    with pytest.raises(BuildRefused, match=r"LGPL-3\.0-only is not in"):
        texts_of(info, tmp_path / "nowhere")


def test_a_licence_at_the_head_of_the_only_module_counts(tmp_path: Path, common: Path) -> None:
    module = {"bindings.py": "##\n# Copyright (c) 2011, Somebody\n# Redistribution is permitted.\n##\nimport os\n# x\n"}
    assert texts_of(installed(tmp_path, "bindings", **module), common) == {
        "bindings.txt": "Copyright (c) 2011, Somebody\nRedistribution is permitted.\n"
    }


def test_llama_cpp_has_the_licence_of_its_own_authors_beside_that_of_the_binding(common: Path) -> None:
    texts = texts_of(importlib.metadata.distribution("llama-cpp-python"), common)
    assert "The ggml authors" in texts["llama.cpp.txt"]
    assert "Permission is hereby granted" in texts["llama.cpp.txt"]
    assert "The ggml authors" not in texts["LICENSE.md"]


def test_what_lacks_a_text_stops_the_build_with_every_name(tmp_path: Path, common: Path) -> None:
    owners = Owners(set(), {"no-such-package-of-the-system"}, ["/somewhere/stranger.so"])
    silent = {"silent": installed(tmp_path, "silent")}
    with pytest.raises(BuildRefused) as refused:
        licences.write(owners, silent, tmp_path / "licences", common)
    for name in ("/somewhere/stranger.so", "silent", "no-such-package-of-the-system"):
        assert name in str(refused.value)


def test_python_itself_is_among_them(tmp_path: Path, common: Path) -> None:
    licences.write(Owners(), {}, tmp_path / "licences", common)
    assert "PSF" in (tmp_path / "licences" / "python" / "CPython" / "LICENSE.txt").read_text(encoding="utf-8")
