"""Makes a Debian package and a self-extracting installer of a packaged program."""
