"""Has llama.cpp's C interface imported without the binding's high-level package, which would cost each load 90 ms.

Nothing here uses that package. Must never take the place of one that is imported already, as in a test's process.
"""

import importlib.util
import re
import sys

_PACKAGE = "llama_cpp"
_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)


def prepare() -> None:
    """Let `import llama_cpp.llama_cpp` run that one module; call before it. Raises ImportError without the binding."""
    if _PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ImportError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)  # made, not executed


def version() -> str:
    """The binding's version."""
    known = getattr(sys.modules.get(_PACKAGE), "__version__", None)
    if isinstance(known, str):
        return known
    spec = importlib.util.find_spec(_PACKAGE)
    read = getattr(spec and spec.loader, "get_source", None)  # importing its protocol costs more than all the rest
    found = _VERSION.search(read(_PACKAGE) or "") if read is not None else None
    if found is not None:
        return found[1]
    from importlib.metadata import version  # a program that was packed without sources; slower

    return version("llama-cpp-python")
