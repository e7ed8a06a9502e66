"""What a macOS application says about itself, and the scripts that make, sign and notarise its disk image."""
