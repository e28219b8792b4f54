"""The flags of commands that label data: those of training that decide labels."""

from __future__ import annotations

import argparse
from typing import Any

from fastsft.chat.labelling import LabelSettings, parse_role_map
from fastsft.inspection import DEFAULT_MAX_LENGTH, InspectionSetup, prepare


def add_label_arguments(parser: argparse.ArgumentParser) -> None:
    """--model and the flags of LabelSettings, named as in training."""
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="model directory; only its tokenizer is read"
    )
    parser.add_argument("--mask_policy", choices=["fastchat", "spans"], default="fastchat")
    parser.add_argument("--template", help="chat template by name, or model: its own")
    parser.add_argument("--chat_template_name", help="which of the model's named chat templates")
    parser.add_argument(
        "--model_max_length",
        type=int,
        default=DEFAULT_MAX_LENGTH,
        metavar="N",
        help="tokens of a row, as in training; default %(default)s",
    )
    parser.add_argument("--train_turns", choices=["all", "last"], default="all")
    parser.add_argument("--role_map", metavar="NAME=ROLE,...", help="more names of roles in the data")
    parser.add_argument("--role_aliases", action="store_true", help="accept user, assistant, ... too")
    parser.add_argument("--on_bad_sample", choices=["error", "skip", "repair"])


def setup_from(args: Any) -> InspectionSetup:
    """ValueError for options that contradict each other and for a model that cannot be used."""
    names = ("mask_policy", "template", "chat_template_name", "train_turns", "role_aliases", "on_bad_sample")
    settings = LabelSettings(
        role_map=parse_role_map(args.role_map), **{name: getattr(args, name) for name in names}
    )
    return prepare(args.model, settings, args.model_max_length)
