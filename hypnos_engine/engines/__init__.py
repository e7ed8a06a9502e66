"""How models are run, seen from the supervisor: the engine protocol, its worker host, and the engine for tests."""
