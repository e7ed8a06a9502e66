"""What Metal may have of a Mac's memory: its own word, its owner's, and the rule where neither is heard."""

import pytest

from hypnos_engine.hardware.apple import WIRED_LIMIT, default_working_set_bytes, sysctl, working_set_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("host_gib", "working_set_gib"), [(8, 16 / 3), (16, 32 / 3), (24, 16), (32, 64 / 3), (36, 27), (64, 48), (192, 144)]
)
def test_metal_s_rule(host_gib: int, working_set_gib: float) -> None:
    """[§6.3-24]"""
    assert default_working_set_bytes(host_gib * GIB) == int(working_set_gib * GIB)


@pytest.mark.parametrize("said", ["", "0", "-1", "sysctl: unknown oid", "0x10"])
def test_without_a_limit_of_the_owner_metal_is_believed(said: str) -> None:
    asked: list[str] = []

    def ask(name: str) -> str:
        asked.append(name)
        return said

    assert working_set_bytes(27 * GIB, 36 * GIB, ask) == 27 * GIB
    assert asked == [WIRED_LIMIT]
    assert working_set_bytes(0, 36 * GIB, ask) == 27 * GIB


def test_the_owner_s_limit_counts_up_to_what_there_is() -> None:
    assert working_set_bytes(27 * GIB, 36 * GIB, lambda name: "32768") == 32 * GIB
    assert working_set_bytes(27 * GIB, 36 * GIB, lambda name: "99999999") == 36 * GIB


def test_elsewhere_there_is_no_such_setting() -> None:
    assert not sysctl(WIRED_LIMIT) or sysctl(WIRED_LIMIT).isdecimal()
