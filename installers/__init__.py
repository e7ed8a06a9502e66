"""What turns a fresh clone into a running Hypnos; standard library only, and it imports nothing of the engine."""
