"""Who may fetch what, and over which way: tokens, proxies, certificates."""

from pathlib import Path

import pytest

from hypnos_engine.catalog.downloads.orders import Network
from hypnos_engine.catalog.downloads.records import JobState
from hypnos_engine.testing.local_hub import Fault, LocalHub, local_hub
from tests.catalog.download_bench import (
    BLOCK,
    KIB,
    REPO,
    bench,
    children,
    content,
    contents_of,
    held,
    self_signed,
    wanted,
)

SIZE = 3 * BLOCK + 1000
LATE = BLOCK + 100 * KIB


async def test_a_gated_repository_needs_a_token_which_goes_to_the_hub_only(tmp_path: Path, hub: LocalHub) -> None:
    """[§6.2-35]"""
    hub.repository(REPO, **{"m.gguf": content(SIZE)}).gated = True
    hub.tokens.add("hf_secret")
    async with bench(tmp_path, hub) as made:
        job = await made.pull(wanted(gated=True))
        assert job.state is JobState.FAILED
        assert "gated" in str(job.error)
        assert "token" in str(job.error)
        await made.downloads.resume(job.id, token="hf_other")
        job = await made.over(job)
        assert (job.state, "may not read it" in str(job.error)) == (JobState.FAILED, True)
        hub.faults.append(Fault(hold_at=LATE))
        await made.downloads.resume(job.id, token="hf_secret")
        await held(hub)
        arguments = [word for child in children() for word in child.cmdline()]
        assert arguments
        assert not any("hf_secret" in word for word in arguments)
        hub.release()
        assert (await made.over(job)).state is JobState.DONE
    assert any("authorization" in headers for _, path, headers in hub.requests if "/resolve/" in path)
    assert not any("authorization" in headers for _, path, headers in hub.requests if path.startswith("/cdn/"))
    kept = contents_of(tmp_path)
    assert "state.db" in kept
    assert not any(b"hf_secret" in content for content in kept.values())


async def test_a_token_of_the_environment_is_used_where_it_is_needed(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repository(REPO, **{"m.gguf": b"abc"})
    hub.repository("closed/one", **{"n.gguf": b"abc"}).gated = True
    hub.tokens.add("hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    async with bench(tmp_path, hub) as made:
        assert (await made.pull(wanted())).state is JobState.DONE
        assert not any("authorization" in headers for _, _, headers in hub.requests)
        assert (await made.pull(wanted("n.gguf", repo="closed/one"))).state is JobState.DONE


async def test_a_proxy_of_the_configuration_is_used(tmp_path: Path, hub: LocalHub) -> None:
    with local_hub() as proxy:
        proxy.repository(REPO, **{"m.gguf": b"abc"})
        network = Network(hub="http://hub.invalid", proxy=proxy.address)
        async with bench(tmp_path, hub, network=network) as made:
            assert (await made.pull(wanted())).state is JobState.DONE
        assert all(path.startswith("http://hub.invalid/") for _, path, _ in proxy.requests)


async def test_a_certificate_of_the_configuration_is_trusted_and_no_other(tmp_path: Path, hub: LocalHub) -> None:
    context, cert = self_signed(tmp_path)
    with local_hub(tls=context) as safe:
        safe.repository(REPO, **{"m.gguf": b"abc"})
        async with bench(tmp_path / "no", safe) as one:
            job = await one.pull(wanted())
            assert job.state is JobState.FAILED
            assert "certificate" in str(job.error)
        async with bench(tmp_path / "yes", safe, network=Network(safe.address, ca_file=str(cert))) as one:
            assert (await one.pull(wanted())).state is JobState.DONE


async def test_a_token_that_was_given_once_is_kept_in_the_keyring(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_keyring.py").write_text(KEYRING, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "own_keyring.Keyring")
    hub.tokens.add("hf_secret")
    for name in ("a", "b"):
        hub.repository(f"closed/{name}", **{f"{name}.gguf": b"abc"}).gated = True
    async with bench(tmp_path, hub) as made:
        first = await made.pull(wanted("a.gguf", repo="closed/a", gated=True), token="hf_secret")
        assert first.state is JobState.DONE, first.error
        second = await made.pull(wanted("b.gguf", repo="closed/b", gated=True))
        assert second.state is JobState.DONE, second.error
    assert (tmp_path / "ring").read_text() == "hypnos hub-token hf_secret"


KEYRING = """
from pathlib import Path
from keyring.backend import KeyringBackend

RING = Path(__file__).parent / "ring"

class Keyring(KeyringBackend):
    priority = 1

    def get_password(self, service, username):
        return RING.read_text().split()[2] if RING.exists() else None

    def set_password(self, service, username, password):
        RING.write_text(f"{service} {username} {password}")
"""
