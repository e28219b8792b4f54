"""transformers' greedy `generate` against `fastsft chat`: replies of random models, the same text compared.

    python benchmarks/bench_replies.py [--pairs 5] [--new 64] [--threads 2]

Both sides have their model in memory and get the ids of one prompt; a run is one reply with its text.
`whole` is tokens per second of the reply, the prompt read first; `next` of its tokens after the first one.
float32, key-value caches on both sides.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import torch

from fastsft.model.generation import ChatModel
from golden_text import GOLDEN
from harness import Ratio, Run, UnequalResultsError, paired, write_result

# hidden, intermediate, layers, heads
MODELS = {"tiny": (64, 128, 2, 4), "0.1B": (768, 2048, 12, 12)}
ANOTHER = [{"role": "system", "content": "Other words."}, {"role": "user", "content": "?"}]
QUESTION = "Tell me about the history of bread. " * 8
TOKENIZER = GOLDEN / "tokenizers" / "llama2_nonlegacy"


def write_model(folder: Path, name: str) -> Any:
    """A random Llama with its tokenizer, as transformers opens it."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    hidden, intermediate, layers, heads = MODELS[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=2048, initializer_range=0.1,
        eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOKENIZER, use_fast=False).save_pretrained(folder)
    return model


def rates(new: int, times: list[float], start: float) -> dict[str, float]:
    """Tokens per second of `new` tokens; times: when texts came, the first token's first."""
    return {"whole": new / (times[-1] - start), "next": (new - 1) / (times[-1] - times[0])}


class Watch:
    """A streamer of transformers that notes when tokens come; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to note."""


def run_generate(model: Any, tokenizer: Any, prompt: list[int], new: int) -> Run:
    ids, watch = torch.tensor([prompt]), Watch()
    start = time.perf_counter()
    whole = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        streamer=watch,
    )
    text = tokenizer.decode(whole[0, len(prompt) :], skip_special_tokens=True)
    watch.times[-1] = time.perf_counter()
    return Run(rates(new, watch.times[1:], start), text.strip())


def run_chat(model: ChatModel, new: int) -> Run:
    for _ in model.stream(ANOTHER, max_new_tokens=1):  # of which the prompt's keys and values are not kept
        pass
    times, parts = [], []
    start = time.perf_counter()
    for text in model.stream([{"role": "user", "content": QUESTION}], max_new_tokens=new):
        times.append(time.perf_counter())
        parts.append(text)
    return Run(rates(new, times, start), "".join(parts).strip())


def check_equal(baseline: str, ours: str) -> None:
    if baseline != ours:
        raise UnequalResultsError(f"texts differ: {baseline!r} against {ours!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            results.update(compare(folder, name, options))
    write_result("bench_replies", results, vars(options))


def compare(folder: str, name: str, options: argparse.Namespace) -> dict[str, Ratio]:
    """The ratios of one model, which is written to `folder`."""
    from transformers import AutoTokenizer

    model = write_model(Path(folder), name)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER, use_fast=False)
    ours = ChatModel(folder)
    prompt = ours.prompts.ids([{"role": "user", "content": QUESTION}])
    found = paired(
        lambda: run_generate(model, tokenizer, prompt, options.new),
        lambda: run_chat(ours, options.new),
        pairs=options.pairs,
        check=check_equal,
    )
    return {f"{name} {metric}": ratio for metric, ratio in found.items()}


if __name__ == "__main__":
    main()
