"""The flag --trust_remote_code for commands that open a model."""

from __future__ import annotations

import argparse

from fastsft.arguments.parsing.options import parse_bool


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the flag, with the meaning that it has in training."""
    parser.add_argument(
        "--trust_remote_code", type=parse_bool, nargs="?", const=True, default=False, metavar="True|False",
        help="run the model class of the directory's own code, with all your rights",
    )  # fmt: skip
