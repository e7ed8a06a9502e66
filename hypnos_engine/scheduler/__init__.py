"""The decision core: events in, effects out. No clock, no log, no lock, no await, no library that runs models."""
