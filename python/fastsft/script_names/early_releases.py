"""Functions that only early releases of FastChat's train.py had (v0.1, some until v0.2.26).

The functions take transformers' tokenizers and models.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerBase, Trainer

IGNORE_INDEX = -100
DEFAULT_PAD_TOKEN = "[PAD]"
DEFAULT_EOS_TOKEN = "</s>"
DEFAULT_BOS_TOKEN = "</s>"
DEFAULT_UNK_TOKEN = "</s>"

_ROLES = {"human": "Human", "gpt": "Assistant"}  # role names in the default_conversation of FastChat v0.1
_BEGIN, _END = "### ", "\n"


def safe_save_model_for_hf_trainer(trainer: Trainer, output_dir: str) -> None:
    """Gather the whole model on every rank, and save the model on rank 0.

    `trainer_save_model_safe` writes the same weights with less memory, unit by unit.
    """
    state_dict = trainer.model.state_dict()
    if trainer.args.should_save:
        cpu_state_dict = {name: value.cpu() for name, value in state_dict.items()}
        del state_dict
        trainer._save(output_dir, state_dict=cpu_state_dict)


def smart_tokenizer_and_embedding_resize(
    special_tokens_dict: dict[str, str | AddedToken],
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
) -> None:
    """Add special tokens to a tokenizer, and embedding rows for them to the model.

    Each new row is the mean of the old rows.
    """
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
    """Tokenize each text, and return its ids ([length], int64, cut at model_max_length) as inputs and labels.

    input_ids_lens, labels_lens: lengths without padding tokens.
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
    """Set the labels of the speaker "human" in `target` ([length], changed in place) to IGNORE_INDEX.

    tokenized_lens, speakers, s_ids: token count, speaker and ids of each sentence. The first sentence begins
    after `header_len` tokens. If a sentence's ids differ from the target, a warning is logged, and the
    sentence is treated like the others.
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
    """Put "### <role>: " before each sentence of `source` and a newline after it, in place.

    Return `header`, followed by the sentences if `get_conversation` is True.
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
    """Collator that pads `input_ids` and `labels` ([length]) on the right to [items, max_length].

    Ids are padded with the padding token, and labels with IGNORE_INDEX. The attention mask is False at
    padding tokens.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, instances: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        pad_id = self.tokenizer.pad_token_id
        padded = {
            name: torch.nn.utils.rnn.pad_sequence(
                [item[name] for item in instances], batch_first=True, padding_value=filling
            )
            for name, filling in (("input_ids", pad_id), ("labels", IGNORE_INDEX))
        }
        return {**padded, "attention_mask": padded["input_ids"].ne(pad_id)}
