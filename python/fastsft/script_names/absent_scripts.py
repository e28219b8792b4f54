"""FastChat's training modules that fastsft does not have: what to use instead."""

from __future__ import annotations

import sys
from typing import NoReturn

_OF_FASTCHAT = "keep FastChat's python -m fastchat.train.{name} for it"
_INSTEAD = {
    "train_lora_t5": f"fastsft has no T5 models; {_OF_FASTCHAT}",
    "train_flant5": f"fastsft has no T5 models; {_OF_FASTCHAT}",
    "train_baichuan": f"fastsft has no Baichuan models; {_OF_FASTCHAT}",
    "train_with_template": (
        "use python -m fastsft.train --mask_policy spans --template NAME, which learns all replies. "
        "FastChat's takes the template from the model's path, and evaluates on 2 % of the data"
    ),
    "train_yuan2": f"fastsft has no Yuan models; {_OF_FASTCHAT}",
}


def refuse(name: str, run_as: str) -> NoReturn:
    """Status 1 where the module `name` is run (`run_as` is __main__), ImportError where it is imported."""
    message = f"fastsft.{name} does not exist: {_INSTEAD[name].format(name=name)}"
    if run_as == "__main__":
        sys.exit(f"error: {message}")
    raise ImportError(message)
