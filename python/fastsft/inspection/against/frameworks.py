"""The frameworks whose labels `fastsft inspect --against` shows, and how each is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).parent / "adapters"
OURS = "fastsft"  # our own labels with other flags


@dataclass(frozen=True)
class Framework:
    """A framework. module: its Python package. tried: the release whose code the adapter was written for.

    install: arguments of `pip install`, for an environment with torch and transformers. hint: advice if the
    framework refuses the model.
    """

    title: str
    module: str
    tried: str
    install: str
    hint: str = ""

    @property
    def command(self) -> str:
        """The command that installs the framework."""
        return f"pip install {self.install}"


FRAMEWORKS = {
    "trl": Framework(
        "TRL",
        "trl",
        "1.16.0",
        "trl==1.16.0",
        "--against_setting chat_template_path=FILE.jinja names a template with {% generation %} by its full "
        "path, and assistant_only_loss=false learns the whole conversation",
    ),
    "llamafactory": Framework(
        "LLaMA-Factory",
        "llamafactory",
        "0.9.5",
        "--no-deps llamafactory==0.9.5 trl==0.24.0 omegaconf antlr4-python3-runtime==4.9.3 torchaudio",
        "--against_setting template=NAME names its template, as in its YAML",
    ),
    "swift": Framework(
        "ms-swift",
        "swift",
        "4.6.0",
        "--no-deps ms-swift==4.6.0 'modelscope<1.30' dacite json-repair",
        "--against_setting model_type=NAME or template_type=NAME, as on its command line",
    ),
    "axolotl": Framework(
        "axolotl", "axolotl", "0.19.0", "--no-deps axolotl==0.19.0 colorama addict fire termcolor"
    ),
    "hf": Framework("transformers", "transformers", "4.57", "transformers"),
}


def adapter_of(name: str) -> Path:
    """Return a framework's program."""
    return ADAPTERS / f"of_{name}.py"
