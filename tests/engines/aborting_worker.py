"""The real worker program, with a thread that makes ggml abort on SIGUSR1, whatever the others do; for tests only."""

import ctypes
import runpy
import signal
import threading


def abort_when_told() -> None:
    signal.sigwait({signal.SIGUSR1})
    from llama_cpp._ggml import libggml

    place = b"/home/somebody/build/ggml/src/ggml-cpu/ops.cpp"
    libggml.ggml_abort(place, ctypes.c_int(4711), b"GGML_ASSERT(%s) failed", b"ne00 == ne10")


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
threading.Thread(target=abort_when_told, daemon=True).start()
runpy.run_module("hypnos_engine.workers", run_name="__main__", alter_sys=True)
