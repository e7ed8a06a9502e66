"""The vocabulary of the whole program as types; decides nothing and imports nothing of the project."""
