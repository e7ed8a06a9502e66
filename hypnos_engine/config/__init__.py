"""Every setting, declared once; reads the files, the environment and flags, and starts nothing itself."""
