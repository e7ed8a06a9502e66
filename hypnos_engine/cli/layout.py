"""How help is laid out: the same whatever the terminal's width, so that docs/cli.md can be compared with it."""

import argparse

WIDTH = 100


class HelpLayout(argparse.RawDescriptionHelpFormatter):
    """argparse's layout with fixed columns; descriptions keep their lines."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=WIDTH)
