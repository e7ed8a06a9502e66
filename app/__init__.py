"""The desktop application: a tray icon and windows that show one engine and send it the user's wishes."""
