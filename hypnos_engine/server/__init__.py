"""The HTTP server: decode, call the runtime, encode. Decides no scheduling and imports no configuration."""
