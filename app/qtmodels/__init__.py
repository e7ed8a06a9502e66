"""Plain rows and menus as Qt wants them. Decides no word and sends nothing."""
