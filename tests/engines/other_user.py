"""A holder that runs as nobody, who may lock 8 MiB; started by tests, with the arguments of the worker program."""

import importlib
import os
import resource
import sys

# What another user may not be able to load: the tester's Python can lie in a closed folder.
for name in ("encodings.idna", "hypnos_engine.workers.__main__", "hypnos_engine.workers.holder.keeper", "traceback"):
    importlib.import_module(name)
limit_bytes = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes // 2, limit_bytes))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.modules["hypnos_engine.workers.__main__"].main(sys.argv[2:])
