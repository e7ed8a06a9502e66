"""The windows. Each paints plain data and emits intents; none asks the engine for anything."""
