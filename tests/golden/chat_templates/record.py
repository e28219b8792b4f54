"""Make published.zip anew, of trl 1.16.0 and llama-cpp-python 0.3.36: python record.py WHEEL SDIST."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

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
HERE = Path(__file__).parent


def main(wheel: str, sdist: str) -> None:
    texts = {}
    with zipfile.ZipFile(wheel) as archive:
        for name, theirs in TRL.items():
            texts[name] = archive.read(f"trl/chat_templates/{theirs}.jinja")
    with tarfile.open(sdist) as tar:
        members = {
            Path(member.name).name: member
            for member in tar.getmembers()
            if "/models/templates/" in member.name
        }
        for name, theirs in LLAMA_CPP.items():
            file = tar.extractfile(members[f"{theirs}.jinja"])
            assert file is not None
            texts[name] = file.read()
    with zipfile.ZipFile(HERE / "published.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(
                zipfile.ZipInfo(f"{name}.jinja", (2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
