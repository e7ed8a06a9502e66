"""What the macOS application says about itself; written for PyInstaller's specification."""

BUNDLE_IDENTIFIER = "org.hypnos.Hypnos"


def information(version: str) -> dict[str, object]:
    """Entries of `Info.plist`: an application of the menu bar, without an icon in the Dock."""
    return {
        "CFBundleDisplayName": "Hypnos",
        "CFBundleShortVersionString": version,
        "CFBundleVersion": version,
        "LSUIElement": True,
        "LSMinimumSystemVersion": "13.0",
        "NSHighResolutionCapable": True,
        "NSHumanReadableCopyright": "The Hypnos authors, Apache License 2.0",
    }
