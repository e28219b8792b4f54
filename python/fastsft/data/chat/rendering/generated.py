"""Generate the text of a compiled chat template, with limits and one kind of exception for each fault."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError

from fastsft.data.chat.rendering.sandbox import Fatal, Refused, TimeLimit

_SURROGATE = re.compile("[\ud800-\udfff]")


def generated(template: Template, values: dict[str, Any], limit: int) -> str:
    """Return the text that a template writes for `values`, of at most `limit` characters.

    Refused if the template raises an exception or writes too much; Fatal if the sandbox forbids an operation.
    """
    parts, size = [], 0
    try:
        for part in template.generate(documents=None, **values):
            size += len(part)
            if size > limit:
                raise Refused(f"the chat template writes more than {limit} characters")
            parts.append(part)
    except SecurityError as error:
        raise Fatal(f"the chat template asks for what the sandbox forbids: {error}") from None
    except TimeLimit:
        raise
    except MemoryError:
        raise Refused("the chat template needs too much memory") from None
    except RecursionError:
        raise Refused("the chat template calls itself without end") from None
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"the chat template refuses the conversation: {_told(error)}") from None
    text = "".join(parts)
    if not text.isascii() and _SURROGATE.search(text):
        raise Refused("the chat template writes a lone surrogate, which is no text")
    return text


def _told(error: Exception) -> str:
    """Return the error's message, at most 300 characters, with control characters escaped."""
    text = str(error)[:300]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
