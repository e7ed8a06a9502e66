"""Makes the packaged program: a folder with two executables, their libraries, the starter model and every licence."""
