"""What a failure of a download means: whether another try makes sense, and the sentence for the person.

Shows no address beyond its host: signed ones are secrets.
"""

import errno

import httpx
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hypnos_engine.catalog.downloads.network import AskedToWait, RangeIgnored, SourceChanged
from hypnos_engine.catalog.downloads.orders import End, Ended
from hypnos_engine.domain.errors import HypnosError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNREACHED = (httpx.TransportError, ConnectionError, TimeoutError, RangeIgnored, SourceChanged)


class NoSpace(Exception):
    """The disk would become too full; the message says so."""


class Stopped(Exception):
    """Somebody asked for the end."""


def ending(error: BaseException, *, had_token: bool) -> Ended:
    """The last word for what ended the work."""
    match error:
        case Stopped():
            return Ended(End.STOPPED)
        case AskedToWait():
            return Ended(End.RETRY, "The far side is busy and asks to wait.", error.retry_after_s)
        case NoSpace():
            return Ended(End.NO_SPACE, str(error))
        case HypnosError():
            return Ended(End.REFUSED, error.message)
        case OfflineModeIsEnabled():
            return Ended(End.REFUSED, "HF_HUB_OFFLINE is set: nothing is downloaded. Unset it and resume.")
        case HfHubHTTPError():
            return _answered(error, had_token=had_token)
        case httpx.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Ended(
                End.REFUSED,
                f"{_host(error)} shows a certificate that this computer does not trust. If a proxy of your own opens "
                "connections, name its certificate in downloads.ca_file.",
            )
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            return Ended(End.REFUSED, "The address is none that can be fetched from; see downloads.hub.")
        case _ if isinstance(error, _UNREACHED):
            return Ended(End.RETRY, f"The connection to {_host(error)} broke or cannot be made.")
        case OSError():
            return _of_disk(error)
        case _:
            return Ended(End.RETRY, f"The download failed unexpectedly ({type(error).__name__}).")


def _answered(error: HfHubHTTPError, *, had_token: bool) -> Ended:
    status, host = error.response.status_code, error.response.request.url.host
    match error:
        case GatedRepoError() if had_token:
            return Ended(
                End.NEEDS_TOKEN,
                "The repository is gated and the token's account may not read it. Accept its licence on its page, or "
                "give the token of an account that has.",
            )
        case GatedRepoError():
            return Ended(
                End.NEEDS_TOKEN,
                "The repository is gated. Accept its licence on its page, then give a token of that account: "
                "`hypnos models pull --ask-token`, or HF_TOKEN.",
            )
        case RepositoryNotFoundError():
            return Ended(End.NEEDS_TOKEN, f"{host} has no such repository, or shows it only with another token.")
        case RevisionNotFoundError() | RemoteEntryNotFoundError():
            return Ended(End.REFUSED, f"{host} does not have the file any more. Update the catalog.")
    if status in (401, 403):
        return Ended(End.NEEDS_TOKEN, f"{host} refuses the file ({status}); a token may be needed.")
    if status in (408, 416, 425) or status >= 500:
        return Ended(End.RETRY, f"{host} cannot serve the file at the moment ({status}).")
    return Ended(End.REFUSED, f"{host} refuses the file ({status}).")


def _of_disk(error: OSError) -> Ended:
    if error.errno in _FULL:
        return Ended(End.NO_SPACE, "The disk is full. Make room and resume; what has come is kept.")
    if error.errno is None:  # the library's own, for a transfer that ended early
        return Ended(End.RETRY, "The connection ended before the file was complete.")
    where = f" {error.filename}" if error.filename else ""
    return Ended(End.REFUSED, f"The file{where} cannot be written ({error.strerror}). Mend that and resume.")


def _host(error: BaseException) -> str:
    try:
        return error.request.url.host if isinstance(error, httpx.RequestError) else "the far side"
    except RuntimeError:  # the request is not known
        return "the far side"
