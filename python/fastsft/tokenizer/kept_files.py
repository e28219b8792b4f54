"""The files of a tokenizer, read when it is loaded: what happens to them later changes no save."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastsft.runtime.output_files import write_below
from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, file_inside, open_regular, read_regular
from fastsft.tokenizer.trained_template import BASE_NAME, TEMPLATES

# What a saved directory takes over from the one that was read (docs/spec/trainer_semantics.md, section 23).
NAMES = (
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_MOST_TEMPLATES = 1000


def decides_ids(name: str) -> bool:
    """True if a file of this name may change the ids of a text."""
    return name.startswith(("tokenizer", "special_tokens", "added_tokens", "vocab", "merges"))


def is_tokenizer_file(name: str) -> bool:
    """True if a model directory has a file of this name for its tokenizer."""
    return name in NAMES or decides_ids(name) or name == BASE_NAME


@dataclass(frozen=True)
class KeptFiles:
    """contents: by name, those in the folder of templates too. digests: SHA-256 of what decides ids."""

    contents: dict[str, bytes]
    digests: dict[str, str]

    @classmethod
    def of(cls, directory: str | Path) -> KeptFiles:
        """Read those of `directory`. Targets of links are taken where a model's weights would be.

        ValueError, naming the link, for one that leaves the directory (the Hugging Face cache's own links
        lead into its `blobs`); and for what is no regular file, or too large for one of a tokenizer.
        """
        folder = Path(directory)
        contents = {
            name: read_regular(path, MOST_TOKENIZER_BYTES, "a file of a tokenizer")
            for name in (*NAMES, *_template_names(folder))
            if (path := file_inside(folder, name)) is not None
        }
        digests = {
            name: hashlib.sha256(contents[name]).hexdigest() if name in contents else _digest(folder / name)
            for name in sorted(_names(folder))
        }
        return cls(contents, digests)

    def write(self, directory: Path) -> None:
        """Write the contents into `directory`, which exists; a file that is there alike keeps its times."""
        for name, content in self.contents.items():
            path = directory / name
            if not (path.is_file() and not path.is_symlink() and path.read_bytes() == content):
                write_below(directory, name, content)


def _template_names(folder: Path) -> list[str]:
    templates = folder / TEMPLATES
    if not templates.is_dir():
        return []
    names = sorted(path.name for path in templates.iterdir())
    if len(names) > _MOST_TEMPLATES:
        raise ValueError(f"{templates}: expected at most {_MOST_TEMPLATES} chat templates, got {len(names)}")
    return [f"{TEMPLATES}/{name}" for name in names]


def _names(folder: Path) -> list[str]:
    """The regular files of the directory that decide ids, and those of the names that are saved."""
    return [path.name for path in folder.iterdir() if decides_ids(path.name) and path.is_file()]


def _digest(path: Path) -> str:
    with open_regular(path, "a file of a tokenizer") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
