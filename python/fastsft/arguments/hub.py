"""Uploads to the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.support import used

HubStrategy = Literal["end", "every_save", "checkpoint", "all_checkpoints"]


@dataclass
class HubArguments:
    """Place and time of uploads of the model."""

    push_to_hub: bool = used(False, "upload the model")
    hub_model_id: str | None = used(None, "repository; unset: the name of output_dir")
    hub_strategy: HubStrategy = used(
        "every_save", "upload at the end or at every save", "checkpoint and all_checkpoints raise"
    )
    hub_token: str | None = used(None, "access token; unset: the one that is logged in")
    hub_private_repo: bool | None = used(None, "make a private repository")
    hub_always_push: bool = used(
        False,
        "upload every save",
        "else the newest replaces one that waits for an upload under way",
    )
    hub_revision: str | None = used(None, "branch")
    push_to_hub_model_id: str | None = used(None, "old name of hub_model_id")
    push_to_hub_organization: str | None = used(None, "old form of the owner in hub_model_id")
    push_to_hub_token: str | None = used(None, "old name of hub_token")
