"""Recorder of published chat templates, of LLaMA-Factory's texts, and of the labels of each template.

`published.zip` is taken out of three packages that collect templates, whose files must be in the working
directory, and `generation_blocks.zip` has all templates of TRL with `{% generation %}` blocks.
`llama_factory.json` holds two turns as LLaMA-Factory 0.9.5 writes them with its templates of these names.
`labels.tsv` is the outcome of each conversation with each template: fastsft's labels, compared with
transformers token by token.
"""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from recording import Recorder, each_file, write_json

FETCH = (
    "pip download --no-deps --no-binary llama-cpp-python trl==1.16.0 axolotl==0.19.0 llama-cpp-python==0.3.36"
)
# Name here: name in TRL's trl/chat_templates.
TRL = {
    "cohere2": "cohere2",
    "deepseek-r1-distill": "deepseek_r1_distill",
    "deepseek-v3": "deepseekv3",
    "gemma-3": "gemma3",
    "gemma-4": "gemma4_v5",
    "gpt-oss-training": "gptoss_training",
    "lfm2": "lfm2_v2",
    "lfm2.5": "lfm2_2_5",
    "llama-3.1": "llama3_1",
    "muse-glimmer": "muse_glimmer",
    "nemotron-3": "nemotron_3_nano",
    "phi-3.5": "phi3_5",
    "qwen2.5-training": "qwen2_5_training",
    "qwen3-2507": "qwen3_instruct_2507",
    "qwen3-training": "qwen3_training",
    "qwen3.6": "qwen3_6",
    "qwen3.8": "qwen3_8",
}
# Name here: name in llama.cpp's models/templates.
LLAMA_CPP = {
    "bielik-3": "Bielik-11B-v3.0-Instruct",
    "deepseek-v3.1": "deepseek-ai-DeepSeek-V3.1",
    "deepseek-v3.2": "deepseek-ai-DeepSeek-V3.2",
    "devstral-2507": "unsloth-mistral-Devstral-Small-2507",
    "glm-4.6": "GLM-4.6",
    "glm-4.7-flash": "GLM-4.7-Flash",
    "granite-3.3": "ibm-granite-granite-3.3-2B-Instruct",
    "granite-4.0": "ibm-granite-granite-4.0",
    "hermes-3-tool_use": "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "kimi-k2": "Kimi-K2-Instruct",
    "kimi-k2-thinking": "Kimi-K2-Thinking",
    "mimo-vl": "MiMo-VL",
    "minimax-m2": "MiniMax-M2",
    "ministral-3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistral-nemo": "mistralai-Mistral-Nemo-Instruct-2407",
    "mistral-small-3.2": "Mistral-Small-3.2-24B-Instruct-2506",
    "nemotron-nano-2": "NVIDIA-Nemotron-Nano-v2",
    "qwen3-coder": "Qwen3-Coder",
    "qwq": "Qwen-QwQ-32B",
    "seed-oss": "ByteDance-Seed-OSS",
    "smollm3": "HuggingFaceTB-SmolLM3-3B",
    "solar-open": "upstage-Solar-Open-100B",
    "step-3.5": "StepFun3.5-Flash",
}
# Name here: name in axolotl's axolotl/utils/chat_templates/templates.
AXOLOTL = {"mistral-small-3": "mistral_v7_tekken", "mistral-v0.3": "mistral_v2v3"}
# Name here: name in llama.cpp's tests/test-chat-template.cpp.
LLAMA_CPP_TESTS = {"phi-4": "phi-4"}
GENERATION = re.compile(rb"{%-?\s*generation\b")
FACTORY_NAMES = ("qwen", "gemma", "mistral", "phi", "zephyr", "alpaca", "vicuna", "chatml")
TURNS = ("Hi", "Ho", "He", "Ha")
# Texts of `chat_template` in published tokenizer_config.json files; NOTICE.md names the models.
BY_HAND = (
    "chatml", "deepseek-chat", "deepseek-r1", "gemma", "glm-4.5", "gpt-oss", "llama-2", "llama-3.2",
    "llama-3", "mistral", "mistral_v0.1", "phi", "qwen", "qwen2.5", "qwen3.5", "qwen3", "zephyr",
)  # fmt: skip


def package_file(pattern: str) -> Path:
    """Return the one file of a package in the working directory."""
    found = list(Path.cwd().glob(pattern))
    assert len(found) == 1, f"expected one {pattern} here, got {len(found)}; {FETCH}"
    return found[0]


def write_blocks(path: Path) -> None:
    """Write all of TRL's templates that have `{% generation %}` blocks."""
    with zipfile.ZipFile(package_file("trl-1.16.0-*.whl")) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("trl/chat_templates/")]
        texts = {Path(name).stem: wheel.read(name) for name in names if name.endswith(".jinja")}
    blocks = {name: text for name, text in texts.items() if GENERATION.search(text)}
    write_templates(path, blocks)


def write_published(path: Path) -> None:
    texts: dict[str, bytes] = {}
    with zipfile.ZipFile(package_file("trl-1.16.0-*.whl")) as wheel:
        for name, theirs in TRL.items():
            texts[name] = wheel.read(f"trl/chat_templates/{theirs}.jinja")
    with zipfile.ZipFile(package_file("axolotl-0.19.0-*.whl")) as wheel:
        for name, theirs in AXOLOTL.items():
            texts[name] = wheel.read(f"axolotl/utils/chat_templates/templates/{theirs}.jinja")
    with tarfile.open(package_file("llama_cpp_python-0.3.36.tar.gz")) as source:
        folders = ("/models/templates/", "/llama.cpp/tests/")
        members = {
            Path(each.name).name: each for each in source if any(part in each.name for part in folders)
        }
        for name, theirs in LLAMA_CPP.items():
            texts[name] = extracted(source, members[f"{theirs}.jinja"])
        tests = extracted(source, members["test-chat-template.cpp"]).decode()
        for name, theirs in LLAMA_CPP_TESTS.items():
            texts[name] = template_of_test(tests, theirs).encode()
    write_templates(path, texts)


def extracted(source: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = source.extractfile(member)
    assert file is not None
    return file.read()


def template_of_test(tests: str, name: str) -> str:
    """Return the template of the test case `name`; its C++ literal is a JSON text, too."""
    found = re.search(rf'/\* \.name= \*/ "{re.escape(name)}",\n\s*/\* \.template_str= \*/ (".*"),\n', tests)
    assert found is not None, name
    text: str = json.loads(found[1])
    return text


def write_templates(path: Path, texts: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in sorted(texts.items()):
            info = zipfile.ZipInfo(f"{name}.jinja", (2026, 1, 1, 0, 0, 0))
            archive.writestr(info, text, zipfile.ZIP_DEFLATED)


class Spelling:
    """A tokenizer for LLaMA-Factory whose ids are texts, so that an encoded conversation is its text."""

    bos_token_id, eos_token_id = "<s>", "</s>"

    def encode(self, text: str, add_special_tokens: bool) -> list[str]:
        return [text]

    def convert_tokens_to_ids(self, token: str) -> str:
        return token


def write_llama_factory(path: Path) -> None:
    """Write the texts of `Template.encode_multiturn`."""
    from llamafactory.data.template import TEMPLATES

    tokenizer: Any = Spelling()
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(TURNS)]
    texts = {}
    for name in FACTORY_NAMES:
        for kind, system in (("plain", None), ("system", "Be kind.")):
            pairs = TEMPLATES[name].encode_multiturn(tokenizer, messages, system, None)
            texts[f"{name} {kind}"] = "".join(text for pair in pairs for part in pair for text in part)
    write_json(path, texts)


def write_labels(path: Path) -> None:
    from template_table import main

    main(str(path))


RECORDER = Recorder(
    libraries={"transformers": "4.57.6"},
    parts=each_file(
        {
            "published.zip": write_published,
            "generation_blocks.zip": write_blocks,
            "llama_factory.json": write_llama_factory,
            "labels.tsv": write_labels,
        }
    ),
    given={f"{name}.jinja": "a published tokenizer_config.json (NOTICE.md)" for name in BY_HAND},
)
