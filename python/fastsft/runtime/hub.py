"""Errors of the hub's library, in words of this package."""

from __future__ import annotations

UNREACHED = "the hub was not reached, and no copy is in the cache"


def hub_reason(error: Exception, what: str) -> str:
    """A line, where the library says several. `what`: what was asked for ("model", "data set")."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "it is there for those only who accepted its terms and are logged in (hf auth login)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no {what} of this name is there, or it is private (hf auth login)"
    if isinstance(error, errors.LocalEntryNotFoundError) or is_unreachable(error):
        return UNREACHED
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_unreachable(error: Exception) -> bool:
    """True if the hub gave no answer: no network, offline by HF_HUB_OFFLINE, or an error of the hub itself.

    huggingface_hub raises those of requests before release 1.0 and those of httpx since.
    """
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", None)
        return status is not None and status >= 500
    if isinstance(error, errors.OfflineModeIsEnabled | ConnectionError | TimeoutError):
        return True
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return not kinds.isdisjoint(
        {("requests", "ConnectionError"), ("requests", "Timeout"), ("httpx", "TransportError")}
    )
