"""The child side: one process per resident model, one file or folder per engine kind. Started, never imported."""
