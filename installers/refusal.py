"""How set-up says that it cannot go on: one sentence for a person and an exit code, never a traceback."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class SetupRefused(Exception):
    """Set-up cannot go on. The message says what is wrong and which command mends it."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BuildRefused(SetupRefused):
    """The packaged program or an installer of it cannot be made. The message says what is wrong and what mends it."""
