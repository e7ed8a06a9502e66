"""The files that are shipped, read once."""

from functools import cache

from hypnos_engine.catalog.entries import Catalog
from hypnos_engine.catalog.finding import CATALOG_NAME, resource
from hypnos_engine.catalog.reading import read_catalog


@cache
def shipped_catalog() -> Catalog:
    catalog = read_catalog(resource(CATALOG_NAME))
    assert catalog is not None
    return catalog
