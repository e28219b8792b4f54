"""Explain huggingface_hub's errors in one line."""

from __future__ import annotations

import errno
import os

_ON = ("1", "ON", "YES", "TRUE")  # as in huggingface_hub
# Errors of the cache's disk. A retry does not help against these errors.
OF_DISK = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EEXIST,
           errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EFBIG)  # fmt: skip
UNREACHED = "the hub was not reached, and no copy is in the cache; check the network, or name a local copy"


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

    if not constants.HF_HUB_OFFLINE:
        return UNREACHED
    return f"{_offline()}, and no whole copy is in the cache; unset it, or name a local copy"


def _offline() -> str:
    """Return text that names the variable by which huggingface_hub is offline."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    name = next((name for name in names if os.environ.get(name, "").upper() in _ON), names[0])
    return f"{name} is set, so that the hub is not asked"


def partial_reason() -> str:
    """Return the reason why a cache folder is only a part of a repository."""
    from huggingface_hub import constants

    return _offline() if constants.HF_HUB_OFFLINE else "the hub has none, or was not reached"


def cache_fault(error: Exception) -> str | None:
    """Return why the hub's cache on this machine cannot be used, and the way out; None for other errors."""
    if not isinstance(error, OSError) or error.errno not in OF_DISK:
        return None
    way = "make room, or set HF_HOME to a directory on another disk"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        way = "set HF_HOME to a directory that can be written"
    return f"the hub's cache cannot be used: {error}; {way}"


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
