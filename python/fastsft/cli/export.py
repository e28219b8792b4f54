"""`fastsft export ollama` and `fastsft export gguf`: write a trained model for other programs."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fastsft import _C
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.cli.places import model_place
from fastsft.cli.trust import add_trust
from fastsft.data.chat.ollama.export import OllamaTemplate, ollama_template
from fastsft.model.gguf.conversion import OUTTYPES, SCRIPT, VARIABLE, convert_to_gguf, find_converter
from fastsft.model.not_a_model import no_config
from fastsft.planning.devices import size_text
from fastsft.runtime.output_files import check_output_file, replace_file
from fastsft.runtime.terminal import visible
from fastsft.tokenizer.tokenizer import Tokenizer

_EXPORT = (
    "`fastsft export ollama DIR`: a Modelfile with which Ollama serves a trained model. "
    "`fastsft export gguf DIR`: the model in one file, by llama.cpp's own converter."
)


def main(arguments: Sequence[str]) -> int:
    """Run `fastsft export`; return 0 if the file was written, 1 if not, 2 for wrong usage."""
    args = _parse(arguments)
    try:
        given, args.directory = Path(args.directory), model_place(args.directory)
        folder = args.directory if given.expanduser() == args.directory else Path()  # not the hub's cache
        write, name = _FORMATS[args.format]
        out = folder / name if args.output is None else args.output
        _check_places(args.directory, out, args.overwrite)
        lines = write(args, out)
    except (ValueError, RuntimeError, OSError, _C.FileError) as error:
        print_error("export", error)
        return 1
    for line in lines:
        print_line(visible(line))
    return 0


def _check_places(directory: Path, out: Path, overwrites: bool) -> None:
    if not (directory / "config.json").is_file():
        raise no_config(directory)
    check_output_file(out, "--output")
    if os.path.lexists(out) and not overwrites:
        raise ValueError(f"{out} exists; choose another --output, or give --overwrite to replace it")


def _ollama(args: argparse.Namespace, out: Path) -> list[str]:
    """Write a Modelfile; return lines about it."""
    weights = args.directory if args.gguf is None else args.gguf
    if args.gguf is not None and not args.gguf.is_file():
        raise ValueError(f"--gguf: {args.gguf}: no such file; fastsft export gguf writes one")
    if args.gguf is not None and args.gguf.open("rb").read(4) != b"GGUF":
        raise ValueError(
            f"--gguf: {args.gguf}: expected a GGUF file, which begins with GGUF, got another; fastsft export "
            "gguf DIR writes one"
        )
    template = ollama_template(Tokenizer.from_pretrained(args.directory))
    replace_file(out, modelfile(template, os.path.abspath(weights)))
    return [*template.notes, f"written: {out}; ollama create NAME -f {out}"]


def modelfile(template: OllamaTemplate, weights: str) -> str:
    """Return the text of a Modelfile. ValueError if the format cannot express the path or the stop text.

    weights: the absolute path of a model directory or GGUF file.
    """
    for text in (weights, *template.stops):
        if '"' in text or not text.isprintable():
            raise ValueError(
                f"a Modelfile cannot hold {text!r}: it has a quotation mark or does not print; rename it"
            )
    stops = "".join(f'PARAMETER stop "{stop}"\n' for stop in template.stops)
    return f'FROM {weights}\nTEMPLATE """{template.text}"""\n{stops}'


def _gguf(args: argparse.Namespace, out: Path) -> list[str]:
    """Convert the model to a GGUF file; return lines about it."""
    converter = find_converter(args.converter)
    print_line(visible(f"converting by {converter}"))
    made = convert_to_gguf(
        args.directory, out, converter, args.outtype,
        overwrites=args.overwrite, trusts_code=args.trust_remote_code,
    )  # fmt: skip
    what = f"{made.architecture}, {made.tensors} tensors, {size_text(made.bytes)}, {made.outtype}"
    return [
        "checked: each tensor of the file has the model's values",
        f"written: {out}: {what}; llama-server --jinja -m {out}",
    ]


_SMALLER = "fastsft export gguf DIR, then llama.cpp's llama-quantize makes a quantised file of model.gguf"
# Programs and formats -> the way to them
_ELSEWHERE = {
    **dict.fromkeys(
        ("vllm", "sglang", "tgi", "lmdeploy", "tensorrt-llm"),
        "servers of models read the directory as it is, as in vllm serve DIR",
    ),
    **dict.fromkeys(
        ("hf", "huggingface", "transformers", "safetensors", "pytorch", "torch", "hub"),
        "the directory is one of transformers already; fastsft convert changes its dtype, hf upload sends it",
    ),
    **dict.fromkeys(
        ("llama.cpp", "llamacpp", "llama_cpp", "lmstudio", "lm-studio", "jan", "koboldcpp", "ggml"),
        "write fastsft export gguf DIR",
    ),
    **dict.fromkeys(
        ("onnx", "awq", "gptq", "exl2", "exl3", "mlx", "openvino", "tensorrt", "coreml", "tflite", "int8"),
        "the converters of that format read the directory as it is",
    ),
    **dict.fromkeys(("lora", "merged", "merge", "adapter", "peft"), "write fastsft merge ADAPTER OUT"),
    "modelfile": "write fastsft export ollama DIR",
}
_FORMATS = {"ollama": (_ollama, "Modelfile"), "gguf": (_gguf, "model.gguf")}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="fastsft export",
        description=_EXPORT,
        epilog="The Modelfile's template writes what the model read before each reply in training. A GGUF "
        "file is compared with the model, tensor by tensor, before it gets its name.",
    )
    parser.add_argument("format", metavar="ollama|gguf", choices=list(_FORMATS))
    parser.add_argument("directory", metavar="DIR", help="a trained model directory, or a hub name")
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="default: DIR/Modelfile or DIR/model.gguf; for a hub model, of these names here",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace FILE where it exists")
    parser.add_argument(
        "--gguf", type=Path, metavar="FILE", help="ollama: take the weights from this file, not from DIR"
    )
    parser.add_argument(
        "--converter", type=Path, metavar="FILE",
        help=f"gguf: llama.cpp's {SCRIPT}, or the checkout; default: {VARIABLE}, then PATH",
    )  # fmt: skip
    parser.add_argument(
        "--outtype",
        choices=list(OUTTYPES.values()),
        help="gguf: of the matrices; default: as they are stored; llama-quantize makes smaller ones",
    )
    add_trust(parser)
    if len(arguments) > 1 and {*arguments[:2]} == {*_FORMATS}:
        parser.error(
            "expected ollama or gguf, got both; write fastsft export gguf DIR, and then "
            "fastsft export ollama DIR --gguf DIR/model.gguf"
        )
    for word in arguments:
        if re.fullmatch(r"(i?q\d\w*|int[48]|fp[48]|[48]bit)", word, re.IGNORECASE):
            parser.error(
                f"expected ollama or gguf, of type {', '.join(OUTTYPES.values())}, got {word}; {_SMALLER}"
            )
    if arguments and (way := _ELSEWHERE.get(arguments[0].lower())) is not None:
        parser.error(f"expected ollama or gguf, got {arguments[0]}; {way}")
    args = parser.parse_args(arguments)
    of_other = ("converter", "outtype") if args.format == "ollama" else ("gguf",)
    for name in of_other:
        if getattr(args, name) is not None:
            other = "gguf" if args.format == "ollama" else "ollama"
            parser.error(f"--{name} is no flag of export {args.format}, but of export {other}; leave it out")
    return args
