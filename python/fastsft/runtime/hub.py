"""Explain huggingface_hub's errors in one line."""

from __future__ import annotations

UNREACHED = "the hub was not reached, and no copy is in the cache; check the network, or name a local copy"
OFFLINE = (
    "HF_HUB_OFFLINE is set, so that the hub is not asked, and no whole copy is in the cache; unset it, or "
    "name a local copy"
)


def hub_reason(error: Exception, what: str) -> str:
    """Return one line that explains an error of huggingface_hub.

    what: the kind of repository that was requested ("model", "data set").
    """
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "it is there for those only who accepted its terms and are logged in (hf auth login)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no {what} of this name is there, or it is private (hf auth login)"
    if isinstance(error, errors.LocalEntryNotFoundError) or is_unreachable(error):
        return unreached()
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the hub refuses it ({status}); log in with hf auth login, or set HF_TOKEN"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def unreached() -> str:
    """Return the reason why no file came from the hub: no answer, or offline mode."""
    from huggingface_hub import constants

    return OFFLINE if constants.HF_HUB_OFFLINE else UNREACHED


def partial_reason() -> str:
    """Return the reason why a cache folder is only a part of a repository."""
    from huggingface_hub import constants

    offline = "HF_HUB_OFFLINE is set, so that the hub is not asked"
    return offline if constants.HF_HUB_OFFLINE else "the hub has none, or was not reached"


def is_refusal(error: Exception) -> bool:
    """True if the hub answered that the repository is missing, private or gated."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        return False
    return isinstance(error, errors.HfHubHTTPError) and not is_unreachable(error)


def is_unreachable(error: Exception) -> bool:
    """True if the hub gave no answer: no network, HF_HUB_OFFLINE, too many requests, or a server error.

    huggingface_hub raises exceptions of the library `requests` before its release 1, and exceptions of httpx
    or httpx2 in later releases.
    """
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", None)
        return status is not None and (status in (408, 429) or status >= 500)
    if isinstance(error, errors.OfflineModeIsEnabled | ConnectionError | TimeoutError):
        return True
    for kind in type(error).__mro__:
        library = kind.__module__.partition(".")[0]
        if library == "requests" and kind.__name__ in ("ConnectionError", "Timeout", "ChunkedEncodingError"):
            return True
        if library.startswith("httpx") and kind.__name__ == "TransportError":
            return True
    return False
