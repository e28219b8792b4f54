"""The flags of commands that label data: those of training that decide labels."""

from __future__ import annotations

import argparse

from fastsft import _C
from fastsft.arguments.parsing.options import MODEL_NAMES, parse_bool
from fastsft.data.chat.labelling import LabelSettings, parse_role_map
from fastsft.inspection.inspect import DEFAULT_MAX_LENGTH, InspectionSetup, prepare, prepare_without_model
from fastsft.sources.readers import MAX_RECORD_BYTES


def add_label_arguments(parser: argparse.ArgumentParser, *, needs_model: bool = True) -> None:
    """--model and the flags of LabelSettings, named as in training."""
    without, policy, limit = "", "", ""
    if not needs_model:
        without = "; without it lengths are bytes and labels those of spans"
        policy, limit = ", without a model spans", ", without a model none"
    parser.add_argument(
        *MODEL_NAMES,
        dest="model",
        required=needs_model,
        metavar="DIR",
        help=f"model directory; only its tokenizer is read{without}",
    )
    parser.add_argument("--mask_policy", choices=["auto", "fastchat", "spans"], help=f"default auto{policy}")
    parser.add_argument("--template", help="chat template by name, or model: its own")
    parser.add_argument("--chat_template_name", help="which of the model's named chat templates")
    parser.add_argument(
        "--model_max_length",
        type=int,
        metavar="N",
        help=f"tokens of a row, as in training; default {DEFAULT_MAX_LENGTH}{limit}",
    )
    parser.add_argument("--train_turns", choices=["all", "last", "each"], default="all")
    parser.add_argument("--role_map", metavar="NAME=ROLE,...", help="more names of roles in the data")
    parser.add_argument(
        "--role_aliases", type=parse_bool, nargs="?", const=True, default=False, metavar="True|False",
        help="accept user, assistant, ... too",
    )  # fmt: skip
    parser.add_argument("--on_bad_sample", choices=["error", "skip", "repair"])
    parser.add_argument("--overlong", choices=["truncate", "split"], default="truncate")
    parser.add_argument("--boundary_tokens", choices=["merge", "split"], default="merge")
    add_format_argument(parser)
    parser.add_argument(
        "--max_record_bytes",
        type=int,
        default=MAX_RECORD_BYTES,
        metavar="N",
        help="bytes that one record may have; default %(default)s",
    )


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """--data_format."""
    parser.add_argument(
        "--data_format",
        choices=["auto", *_C.data_formats()],
        default="auto",
        help="what records are; default: as they say",
    )


def setup_from(args: argparse.Namespace, data: str) -> InspectionSetup:
    """For what `data` names. ValueError for options that contradict each other, and an unusable model."""
    names = (
        "template",
        "chat_template_name",
        "train_turns",
        "role_aliases",
        "on_bad_sample",
        "overlong",
        "boundary_tokens",
    )
    settings = LabelSettings(
        mask_policy=args.mask_policy or "auto",
        role_map=parse_role_map(args.role_map),
        **{name: getattr(args, name) for name in names},
    )
    if args.model is not None:
        return prepare(args.model, settings, args.model_max_length, data)
    for flag in ("model_max_length", "chat_template_name"):
        if getattr(args, flag) is not None:
            raise ValueError(f"--{flag}: is of a model's tokenizer; add --model DIR")
    if args.mask_policy == "fastchat":
        raise ValueError(
            "--mask_policy fastchat: FastChat counts a tokenizer's ids; add --model DIR, or leave it out"
        )
    return prepare_without_model(settings)
