"""Functions that only early releases of FastChat's train.py had (v0.1, some to v0.2.26), as they were there.

Their tokenizers and models are those of transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from transformers import AddedToken, PreTrainedTokenizerBase

IGNORE_INDEX = -100
DEFAULT_PAD_TOKEN = "[PAD]"
DEFAULT_EOS_TOKEN = "</s>"
DEFAULT_BOS_TOKEN = "</s>"
DEFAULT_UNK_TOKEN = "</s>"

_ROLES = {"human": "Human", "gpt": "Assistant"}  # of default_conversation in v0.1
_BEGIN, _END = "### ", "\n"


class _Model(Protocol):
    def state_dict(self) -> Mapping[str, torch.Tensor]: ...


class _Arguments(Protocol):
    @property
    def should_save(self) -> bool: ...


class SavingTrainer(Protocol):
    """A Trainer of transformers, as far as it saves a model."""

    @property
    def model(self) -> _Model: ...
    @property
    def args(self) -> _Arguments: ...
    def _save(self, output_dir: str, state_dict: dict[str, torch.Tensor]) -> object: ...


class ResizedModel(Protocol):
    """A model of transformers with input and output embeddings, whose number of rows can be changed."""

    def resize_token_embeddings(self, new_num_tokens: int, /) -> object: ...
    def get_input_embeddings(self) -> torch.nn.Embedding: ...
    def get_output_embeddings(self) -> torch.nn.Linear: ...


def safe_save_model_for_hf_trainer(trainer: SavingTrainer, output_dir: str) -> None:
    """Save the model of a trainer into `output_dir`: whole on every rank first, then written by rank 0.

    `trainer_save_model_safe` writes the same weights unit by unit.
    """
    state_dict = trainer.model.state_dict()
    if trainer.args.should_save:
        cpu_state_dict = {name: value.cpu() for name, value in state_dict.items()}
        del state_dict
        trainer._save(output_dir, state_dict=cpu_state_dict)


def smart_tokenizer_and_embedding_resize(
    special_tokens_dict: dict[str, str | AddedToken],
    tokenizer: PreTrainedTokenizerBase,
    model: ResizedModel,
) -> None:
    """Add special tokens to a tokenizer and rows for them to the model: the mean of the rows there were."""
    added = tokenizer.add_special_tokens(special_tokens_dict)
    model.resize_token_embeddings(len(tokenizer))
    if added <= 0:
        return
    changed: tuple[torch.nn.Embedding | torch.nn.Linear, ...] = (
        model.get_input_embeddings(), model.get_output_embeddings(),
    )  # fmt: skip
    for embeddings in changed:
        rows: torch.Tensor = embeddings.weight.data
        rows[-added:] = rows[:-added].mean(dim=0, keepdim=True)


def _tokenize_fn(strings: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    """Ids of each text (int64, [length], cut at model_max_length), twice, and their numbers of tokens, twice.

    Tokens that are the padding token do not count.
    """
    rows = [
        tokenizer(
            text, return_tensors="pt", padding="longest", max_length=tokenizer.model_max_length,
            truncation=True,
        ).input_ids[0]
        for text in strings
    ]  # fmt: skip
    lengths = [int(row.ne(tokenizer.pad_token_id).sum()) for row in rows]
    return {"input_ids": rows, "labels": rows, "input_ids_lens": lengths, "labels_lens": lengths}


def _mask_targets(
    target: torch.Tensor,
    tokenized_lens: Sequence[int],
    speakers: Sequence[str],
    header_len: int,
    s_ids: Sequence[torch.Tensor],
) -> None:
    """Set the parts of `target` ([length], changed in place) that "human" speaks to IGNORE_INDEX.

    tokenized_lens, speakers, s_ids: tokens, speaker and ids of each sentence, the first after `header_len`
    tokens. A sentence whose ids differ from its part of the target is told, and masked all the same.
    """
    begin, size = header_len, target.shape[0]
    for length, speaker, ids in zip(tokenized_lens, speakers, s_ids, strict=False):
        if begin >= size:
            return
        end = begin + length
        if end < size and not torch.equal(target[begin + 2 : end], ids[2:]):
            logging.warning("a sentence mismatches the corresponding piece in the conversation")
        if speaker == "human":
            target[begin:end] = IGNORE_INDEX
        begin = end


def _add_speaker_and_signal(
    header: str, source: Sequence[dict[str, str]], get_conversation: bool = True
) -> str:
    """Write "### <role>: " before and a newline after each sentence of `source`, in place.

    Returns `header` and the sentences after it, or `header` alone without `get_conversation`.
    """
    conversation = header
    for sentence in source:
        role = _ROLES.get(sentence["from"].lower(), "unknown")
        sentence["value"] = f"{_BEGIN}{role}: {sentence['value']}{_END}"
        if get_conversation:
            conversation += sentence["value"]
    return conversation


@dataclass
class DataCollatorForSupervisedDataset:
    """Pads items (`input_ids`, `labels`, each [length]) on the right to a batch [items, longest].

    Ids are filled up with the padding token, labels with IGNORE_INDEX; the mask is where ids are not padding.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, instances: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The batch of `instances`."""
        pad_id = self.tokenizer.pad_token_id
        padded = {
            name: torch.nn.utils.rnn.pad_sequence(
                [item[name] for item in instances], batch_first=True, padding_value=filling
            )
            for name, filling in (("input_ids", pad_id), ("labels", IGNORE_INDEX))
        }
        return {**padded, "attention_mask": padded["input_ids"].ne(pad_id)}
