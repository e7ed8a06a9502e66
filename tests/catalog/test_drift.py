"""`hypnos catalog check --online`: what the hub says, against a hub on this machine and the real client."""

from collections.abc import Iterator

import pytest

from hypnos_engine.catalog.drift import Finding, Kind, check_online, matching
from hypnos_engine.catalog.entries import CatalogFile, Role
from hypnos_engine.config.render import toml_value
from tests.catalog.small_catalog import catalog_of, entry
from tests.catalog.small_hub import Hub, Repo, small_hub

OLD, NEW = "a" * 40, "b" * 40
DIGEST, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def hub() -> Iterator[Hub]:
    with small_hub() as hub:
        yield hub


def findings(hub: Hub, files: str, *, verified: bool = True) -> list[tuple[Kind, str]]:
    catalog = catalog_of(entry(files=files, extra="" if verified else "verified = false"))
    found: list[Finding] = list(check_online(catalog, endpoint=hub.address))
    assert all(one.spec == "tiny:1m:Q8_0" for one in found)
    return [(one.kind, one.message) for one in found]


def listed(remote: str = "m.gguf", **values: str | int) -> str:
    given = {"role": "weights", "repo": "own/er", "remote": remote, **values}
    shown = ", ".join(f"{name} = {toml_value(value)}" for name, value in given.items())
    return f"{{ {shown} }}"


def test_what_agrees_is_not_mentioned(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"m.gguf": (4, DIGEST), "README.md": (9, None)})
    assert findings(hub, listed(size_bytes=4, sha256=DIGEST)) == []


def test_another_size_and_another_digest_are_found(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"m.gguf": (5, OTHER)})
    found = findings(hub, listed(size_bytes=4, sha256=DIGEST))
    assert [kind for kind, _ in found] == [Kind.SIZE, Kind.DIGEST]
    assert "5 bytes, the catalog says 4" in found[0][1]


def test_a_pinned_file_is_asked_for_at_its_revision(hub: Hub) -> None:
    hub.repos["own/er", OLD] = Repo({"m.gguf": (4, DIGEST)})
    hub.repos["own/er", "main"] = Repo({"m.gguf": (4, DIGEST)})
    assert findings(hub, listed(size_bytes=4, sha256=DIGEST, revision=OLD)) == []
    assert any(OLD in path for path in hub.asked)
    hub.repos["own/er", "main"] = Repo({"m.gguf": (4, OTHER)})
    assert [kind for kind, _ in findings(hub, listed(size_bytes=4, sha256=DIGEST, revision=OLD))] == [Kind.NEWER]


def test_what_is_gone_is_found(hub: Hub) -> None:
    missing = [Kind.MISSING]
    assert [kind for kind, _ in findings(hub, listed(size_bytes=4))] == missing
    hub.repos["own/er", "main"] = Repo({"other.gguf": (4, None)})
    assert [kind for kind, _ in findings(hub, listed(size_bytes=4))] == missing
    assert [kind for kind, _ in findings(hub, listed(size_bytes=4, revision=NEW))] == missing


def test_what_the_hub_knows_better_is_shown(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"m-Q8_0.gguf": (4, DIGEST), "x.gguf": (4, None)})
    ((kind, message),) = findings(hub, listed("m*Q8*.gguf"), verified=False)
    assert kind is Kind.LEARNED
    assert message == f"remote = 'm-Q8_0.gguf', size_bytes = 4, sha256 = '{DIGEST}'"


def test_a_pattern_that_fits_two_files_names_none(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"a.gguf": (4, None), "b.gguf": (4, None)})
    ((kind, message),) = findings(hub, listed("*.gguf", local="m.gguf"), verified=False)
    assert (kind, message) == (Kind.MISSING, "2 files fit *.gguf")


def test_a_folder_is_counted(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"onnx/a": (4, None), "onnx/b": (5, None), "c": (6, None)})
    (found,) = findings(hub, listed("onnx/", local="x/"), verified=False)
    assert found == (Kind.LEARNED, "2 files, 9 bytes")
    (found,) = findings(hub, listed("/", local="x/"), verified=False)
    assert found == (Kind.LEARNED, "3 files, 15 bytes")
    assert findings(hub, listed("voices/", local="x/"), verified=False)[0][0] is Kind.MISSING


def test_a_repository_behind_a_licence_is_found(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"m.gguf": (4, None)}, gated="auto")
    assert [kind for kind, _ in findings(hub, listed(size_bytes=4))] == [Kind.GATED]
    assert findings(hub, listed(size_bytes=4).replace(" }", ", gated = true }")) == []
    hub.repos["own/er", "main"] = Repo({}, status=403, error_code="GatedRepo")
    ((kind, message),) = findings(hub, listed(size_bytes=4))
    assert kind is Kind.UNREACHABLE
    assert "accept its licence" in message


def test_a_hub_that_fails_or_is_not_there_is_a_finding(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({}, status=418)
    assert [kind for kind, _ in findings(hub, listed(size_bytes=4))] == [Kind.UNREACHABLE]
    catalog = catalog_of(entry())
    gone = list(check_online(catalog, endpoint="http://127.0.0.1:9"))
    assert [one.kind for one in gone] == [Kind.UNREACHABLE]


def test_each_repository_is_asked_once(hub: Hub) -> None:
    hub.repos["own/er", "main"] = Repo({"a": (4, None), "b": (4, None)})
    both = f"{listed('a', size_bytes=4)}, {listed('b', size_bytes=4)}"
    assert findings(hub, both) == []
    assert len(hub.asked) == 1


def test_names_are_compared_as_they_are_written() -> None:
    file = CatalogFile(Role.WEIGHTS, "own/er", "a[1].gguf", "x")
    assert matching(file, ["a1.gguf", "a[1].gguf"]) == ["a[1].gguf"]
