"""Where the token for gated repositories comes from: what the person gave, the hub's standard places, the OS keyring.

Runs in a download child. A token is never written anywhere but into the keyring.
"""

import contextlib
from typing import Final

from huggingface_hub.utils import get_token  # type: ignore[attr-defined]

SERVICE: Final = "hypnos"
USER: Final = "hub-token"


def find_token() -> str | None:
    """The token that is kept on this computer: HF_TOKEN, the file of the hub's own command, then the OS keyring."""
    return get_token() or _in_keyring()


def keep_token(token: str) -> bool:
    """Put a token that has worked into the OS keyring; False where there is none, or it refuses."""
    with contextlib.suppress(Exception):  # a keyring is another program, and fails in as many ways
        import keyring

        if keyring.get_password(SERVICE, USER) != token:
            keyring.set_password(SERVICE, USER, token)
        return True
    return False


def _in_keyring() -> str | None:
    with contextlib.suppress(Exception):
        import keyring

        return keyring.get_password(SERVICE, USER)
    return None
