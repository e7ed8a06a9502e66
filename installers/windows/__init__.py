"""Makes a Windows installer of a packaged program."""
