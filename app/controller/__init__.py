"""Between the windows and the engine: carries wishes to its API and what it tells back. Knows no widget."""
