"""Says which functions of llama.cpp a text worker calls before it is given a model; run by a test."""

from typing import Any

from hypnos_engine.workers.llama import binding

binding.prepare()

import llama_cpp.llama_cpp as lib  # noqa: E402 - the real one is to be there first

from hypnos_engine.workers.llama import start  # noqa: E402

called: list[str] = []


def recording(name: str, function: Any) -> Any:
    """Call the function, and remember that it was called."""

    def call(*arguments: Any) -> Any:
        called.append(name)
        return function(*arguments)

    return call


for name, value in list(vars(lib).items()):
    if callable(value) and name.startswith(("llama_", "ggml_")) and not isinstance(value, type):
        setattr(lib, name, recording(name, value))

library = start._import_library()
assert isinstance(library, start._Library), library
print(*called)
