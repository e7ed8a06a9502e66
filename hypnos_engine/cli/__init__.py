"""The `hypnos` command, one file per subcommand; decides how things are said to a person, never what happens."""
