"""What the desktop around the program offers: its loop, icons, login, sleep, and one running copy. Paints no window."""
