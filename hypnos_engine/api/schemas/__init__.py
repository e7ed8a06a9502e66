"""The bodies of the HTTP API as msgspec structs, one module per area of the contract; they decide nothing."""
