"""What a dead worker's stderr and status are turned into."""

import pytest

from hypnos_engine.domain.errors import DeviceOutOfMemory, WorkerDied
from hypnos_engine.engines.last_words import KEPT_BYTES, StderrTail, cause_of_death, describe_exit, telling_lines


def test_only_the_last_bytes_are_kept() -> None:
    tail = StderrTail()
    for number in range(10_000):
        tail.feed(f"line {number:04}\n".encode() * 2)
    lines = tail.lines()
    assert lines[-1] == "line 9999"
    assert KEPT_BYTES - 100 < sum(len(line) + 1 for line in lines) <= KEPT_BYTES


def test_lines_may_come_in_pieces_and_without_an_end() -> None:
    tail = StderrTail()
    assert tail.feed(b"first\nsec") == ["first"]
    assert tail.feed(b"ond\r\nlast") == ["second"]
    assert tail.lines() == ["first", "second", "last"]


def test_an_endless_line_is_cut_and_bounded() -> None:
    tail = StderrTail()
    for _ in range(100):
        tail.feed(b"x" * 10_000)
    assert 0 < sum(map(len, tail.lines())) <= KEPT_BYTES + 4096


def test_bytes_that_are_no_text_and_control_characters_are_made_harmless() -> None:
    tail = StderrTail()
    tail.feed(b"\x1b[31mred\xff\x00\x07\n")
    assert tail.lines() == ["[31mred\ufffd"]


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: out of memory",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 512.00 MiB on device 0: cudaMalloc failed",
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1",
        "ggml_metal_synchronize: error: command buffer 0 failed with status 5: Insufficient Memory",
    ],
)
def test_an_allocation_that_failed_is_device_out_of_memory(line: str) -> None:
    error = cause_of_death("tiny", -6, ["loading", line, "something after it"])
    assert isinstance(error, DeviceOutOfMemory)
    assert line[:40] in error.message


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (
            -6,
            [
                "ggml_cuda_host_malloc: failed to allocate 1 MiB of pinned memory: out of memory",
                "GGML_ASSERT(x) failed",
            ],
        ),
        (-6, ["failed to allocate", *["later"] * 40]),
        (-9, ["out of memory"]),
        (0, ["out of memory"]),
    ],
)
def test_other_deaths_are_not_blamed_on_device_memory(status: int, lines: list[str]) -> None:
    assert type(cause_of_death("tiny", status, lines)) is WorkerDied


def test_the_telling_lines_are_chosen() -> None:
    lines = ["llama: loading", "/src/ggml.c:1: GGML_ASSERT(a) failed", "build: 7000", "done"]
    assert telling_lines(lines) == "ggml.c:1: GGML_ASSERT(a) failed"
    assert telling_lines(["one", "two", "three", "four"]) == "two | three | four"
    assert telling_lines([]) == ""


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-6, "was ended by signal SIGABRT"),
        (-250, "was ended by signal number 250"),
        (3, "ended with status 3"),
        (0xC0000005, "crashed with code 0xC0000005"),
    ],
)
def test_an_exit_is_described(status: int, words: str) -> None:
    assert describe_exit(status) == words


def test_a_kill_from_outside_names_the_likeliest_reason() -> None:
    assert "perhaps because the system ran out of memory" in cause_of_death("tiny", -9, []).message
    known = cause_of_death("tiny", -9, [], memory_ran_out=True)
    assert type(known) is WorkerDied
    assert "and the system ran out of memory at that time" in known.message


@pytest.mark.parametrize(
    "line",
    [
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "MemoryError",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 720.00 MB)",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1024",
        "alloc_tensor_range: failed to allocate CPU buffer of size 1024",
        "ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed",
    ],
)
def test_the_machines_own_memory_is_not_the_devices(line: str) -> None:
    error = cause_of_death("tiny", -6, ["loading", line, "something after it"])
    assert type(error) is WorkerDied
    assert "ran out of memory and was ended by signal SIGABRT" in error.message
    assert "device" not in error.message


def test_a_bus_error_points_at_the_file() -> None:
    assert "was cut short or replaced" in cause_of_death("tiny", -7, []).message


def test_where_a_library_was_built_is_left_out() -> None:
    lines = ["/tmp/pip-x/vendor/llama.cpp/ggml/src/ggml.c:1: GGML_ASSERT(a) failed", "error in /models/a.gguf: short"]
    assert telling_lines(lines) == "ggml.c:1: GGML_ASSERT(a) failed | error in /models/a.gguf: short"
