"""What a view looks like, as plain data: words, rows, menus and notices. Imports no widget and sends nothing."""
