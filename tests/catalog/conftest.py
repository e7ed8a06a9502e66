"""The hub on this machine that downloads come from."""

from tests.catalog.download_bench import hub

__all__ = ["hub"]
