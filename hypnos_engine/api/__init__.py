"""The wire: schemas, error table, server-sent events, the Python client. Knows no listening socket and no model."""
