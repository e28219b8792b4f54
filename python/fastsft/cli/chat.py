"""`fastsft chat DIR`: talk to a trained model, in the terminal or through a pipe."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fastsft import _C
from fastsft.arguments.parsing.wrong_values import dtype_name
from fastsft.cli.command_parser import CommandParser
from fastsft.cli.places import model_place
from fastsft.cli.trust import add_trust
from fastsft.lora.merge import open_chat_model
from fastsft.runtime.terminal import fitted, visible

if TYPE_CHECKING:
    from fastsft.model.generation import ChatModel

_NEXT = {"role": "user", "content": "?"}
_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends a reply"
_LEAVE, _RESET, _ASK = ("/exit", "/quit", "/bye", "/q"), ("/reset", "/clear", "/new"), ("/help", "/?", "/h")
_COMMAND = re.compile(r"/[a-z?]+$")


def main(arguments: Sequence[str]) -> int:
    """Load the model and answer questions until the input ends; return the exit status."""
    args = parse(arguments)
    try:
        started = time.perf_counter()
        model = open_chat_model(
            model_place(args.model, has_code=args.trust_remote_code), args.base_model_path,
            template=args.template, device=args.device, dtype=args.dtype,
            trust_remote_code=args.trust_remote_code,
        )  # fmt: skip
    except (ValueError, OSError, RuntimeError) as error:
        print(fitted(visible(f"error: {error}"), sys.stderr), file=sys.stderr)
        return 1
    if args.message is not None:
        questions: Iterable[str] = [args.message]
    else:
        questions = _typed() if sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin)
        if sys.stdin.isatty():
            seconds = time.perf_counter() - started
            by = "" if model.engine_kind == "native" else ", by transformers' own forward"
            print(f"{args.model}: template {model.prompts.name}{by}, loaded in {seconds:.1f} s\n{_HELP}")
    _silence_libraries()
    return Talk(model, args).run(questions)


def _silence_libraries() -> None:
    """Turn off library warnings, which would appear between replies; loading has already printed its own."""
    warnings.simplefilter("ignore")
    library = sys.modules.get("transformers")
    if library is not None:
        library.logging.set_verbosity_error()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog="fastsft chat", word_flag="--message", description=__doc__, epilog=_HELP)
    parser.add_argument(
        "model", metavar="DIR", help="a model directory, a LoRA adapter, a checkpoint or a hub name"
    )
    parser.add_argument(
        "--base-model-path", help="of an adapter; default: the model that adapter_config.json names"
    )
    parser.add_argument("--message", help="answer this one message and leave")
    parser.add_argument("--system", help="system prompt; default that of the template")
    parser.add_argument(
        "--template", help="named chat template; default the model's own, vicuna_v1.1 without one"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="0 takes the most likely token; default 0.7"
    )
    parser.add_argument(
        "--top_p", "--top-p", type=float, default=1.0, help="draw from the likeliest that add up to it"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default 0")
    parser.add_argument(
        "--max_new_tokens", "--max-new-tokens", type=int, default=512, help="of a reply; default 512"
    )
    parser.add_argument(
        "--device",
        default="cuda" if _C.with_cuda and _has_gpu() else "cpu",
        help="cpu, cuda or cuda:N; default: a GPU where there is one",
    )
    parser.add_argument(
        "--dtype",
        type=dtype_name,
        choices=["auto", "float32", "bfloat16"],
        default="auto",
        help="to compute in; default: float32 on the CPU, on a GPU bfloat16",
    )
    add_trust(parser)
    args = parser.parse_args(arguments)
    if args.message is not None and not args.message.strip():
        parser.error("--message: expected a question, got an empty text; leave the flag out to talk")
    if args.temperature < 0:
        parser.error(f"--temperature: expected 0 or more, got {args.temperature}")
    if not 0 < args.top_p <= 1:
        parser.error(f"--top_p: expected more than 0 and at most 1, got {args.top_p}")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", args.device):
        parser.error(f"--device: expected cpu, cuda or cuda:N, got {args.device!r}")
    if args.device != "cpu" and not _has_gpu():
        parser.error(f"--device {args.device}: torch sees no GPU here; --device cpu, or leave it out")
    if args.max_new_tokens < 1:
        parser.error(f"--max_new_tokens: expected at least 1, got {args.max_new_tokens}")
    return args


class Talk:
    """A conversation with a model in the terminal; `/reset` begins a new conversation."""

    def __init__(self, model: ChatModel, args: argparse.Namespace) -> None:
        self._model, self._args = model, args
        self._messages: list[dict[str, str]] = []
        self._reset()

    def run(self, questions: Iterable[str]) -> int:
        """Answer questions until /exit or the end of input; return 1 if an answer failed, else 0."""
        status = 0
        for question in questions:
            word = question.strip().lower()
            if word in _LEAVE:
                break
            if word in _RESET:
                self._reset()
            elif _COMMAND.match(word):
                print(_HELP if word in _ASK else f"no command {word}; {_HELP}")
            elif word:
                status = max(status, self._answer(question))
        return status

    def _reset(self) -> None:
        system = self._args.system
        self._messages = [] if system is None else [{"role": "system", "content": system}]

    def _answer(self, question: str) -> int:
        self._messages.append({"role": "user", "content": question})
        reply, started, count = "", time.perf_counter(), 0
        try:
            for text in self._pieces():
                print(visible(text, keep="\n\t"), end="", flush=True)
                reply, count = reply + text, count + 1
        except (ValueError, RuntimeError) as error:
            self._messages.pop()
            again = "; /reset begins another conversation" if self._messages else ""
            print(fitted(visible(f"error: {error}{again}"), sys.stderr), file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(" ...", end="")
        print()
        if sys.stdout.isatty():
            rate = count / max(time.perf_counter() - started, 1e-9)
            print(f"\033[2m[{rate:.1f} tokens/s]\033[0m")
        self._keep(reply)
        return 0

    def _keep(self, text: str) -> None:
        """Add the reply to the conversation; drop a reply that the template rejects, and its question."""
        prompts = self._model.prompts
        reply = {"role": "assistant", "content": prompts.content(text)}
        if not reply["content"]:
            self._messages.pop()
            return
        try:
            prompts.ids([*self._messages, reply, _NEXT])
        except ValueError as error:
            self._messages.pop()
            left = f"note: question and reply are left out of the conversation, which they would end: {error}"
            print(fitted(visible(left), sys.stderr), file=sys.stderr)
        else:
            self._messages.append(reply)

    def _pieces(self) -> Iterator[str]:
        args = self._args
        options = {"temperature": args.temperature, "top_p": args.top_p, "seed": args.seed}
        pieces: Iterator[str] = self._model.stream(
            self._messages, max_new_tokens=args.max_new_tokens, **options
        )
        return pieces


def _typed() -> Iterator[str]:
    """Yield lines typed in the terminal, with line editing and history."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
