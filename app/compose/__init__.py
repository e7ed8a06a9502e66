"""Wires the desktop together: application, loop, windows, engine. Decides the order of starting and ending only."""
