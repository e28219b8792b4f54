"""Uploads to the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fastsft.arguments.meaning import inert, used
from fastsft.arguments.treatment import refusal
from fastsft.notices import warn_once

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments

HubStrategy = Literal["end", "every_save", "checkpoint", "all_checkpoints"]


@dataclass
class HubArguments:
    """Where the model is uploaded, and when."""

    push_to_hub: bool = used(False, "upload the model")
    hub_model_id: str | None = used(None, "repository; unset: the name of output_dir")
    hub_strategy: HubStrategy = used(
        "every_save", "upload at the end or at every save", "checkpoint and all_checkpoints raise"
    )
    hub_token: str | None = used(None, "access token; unset: the one that is logged in")
    hub_private_repo: bool | None = used(None, "make a private repository")
    hub_always_push: bool = inert(False, "do not skip uploads", "every save is uploaded, one after another")
    hub_revision: str | None = used(None, "branch")
    push_to_hub_model_id: str | None = used(None, "old name of hub_model_id")
    push_to_hub_organization: str | None = used(None, "old form of the owner in hub_model_id")
    push_to_hub_token: str | None = used(None, "old name of hub_token")


def settle_hub(args: TrainingArguments) -> None:
    """Old names mean the new ones; two of the four strategies are done."""
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        raise ValueError(refusal("hub_strategy", args.hub_strategy, "use --hub_strategy every_save"))
    if args.push_to_hub_token is not None:
        args.hub_token = args.push_to_hub_token
    name = args.push_to_hub_model_id
    if name is None and args.push_to_hub_organization is not None:
        name = (args.hub_model_id or args.output_dir or "").rstrip("/").split("/")[-1]
    if name is not None:
        owner = args.push_to_hub_organization
        args.hub_model_id = f"{owner}/{name}" if owner else name
        warn_once(f"--push_to_hub_* are old names of --hub_*; the repository is {args.hub_model_id}")
