"""FastChat's ModelArguments and DataArguments, with fastsft's own fields for data and labels."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.given import RecordsGiven
from fastsft.arguments.support import supported
from fastsft.sources.data_files import data_files
from fastsft.sources.readers import MAX_RECORD_BYTES, check_data_format


@dataclass
class DataArguments(RecordsGiven):
    """The conversations to learn from."""

    # The default is None, but the annotation is that of FastChat.
    data_path: str = supported(  # type: ignore[assignment]
        None, "files of conversations: a.json,b.jsonl:0.5,c/*.parquet,hf://datasets/owner/name; - is stdin"
    )
    eval_data_path: str = supported(None, "the same, for evaluation")  # type: ignore[assignment]
    eval_split: float = supported(
        0.0,
        "share or number of conversations to take out for evaluation",
        "drawn of --data_path with --data_seed, else --seed; equal conversations stay together",
    )
    lazy_preprocess: bool = supported(
        False, "keep the rows that were asked for; all are labelled at the start"
    )
    max_dropped: float = supported(0.05, "stop above this fraction of samples without a label")
    legacy_warnings: bool = supported(False, "also print FastChat's line for each drop")
    mask_policy: Literal["auto", "fastchat", "spans"] = supported(
        "auto",
        "fastchat: FastChat's labels, drops included; spans: every reply of any template; auto: fastchat "
        "where FastChat works with the tokenizer, else spans",
    )
    template: str | None = supported(
        None, "chat template by name, or model: its own; default with spans: model where it has one"
    )
    save_chat_template: Literal["trained", "base"] = supported(
        "trained", "chat template of the saved model: the one of the labels, or the base model's as it is"
    )
    chat_template_name: str | None = supported(
        None, "which of the model's named chat templates; default: by the tools of a record"
    )
    template_date: str | None = supported(
        None,
        "date that a chat template is told, such as 2026-11-26; default: today, resumed: that of the start",
    )
    train_turns: Literal["all", "last", "each"] = supported(
        "all",
        "rows of replies (spans); each: every reply in a row of its own; last: old name of --learn last",
    )
    learn: Literal["all", "last", "after_last_user", "marked"] = supported(
        "all", 'which replies are learned (spans); marked: those with "train": true'
    )
    learn_tool_calls: bool = supported(True, "learn replies that call tools (spans)")
    learn_thoughts: Literal["all", "filled", "none"] = supported(
        "all", "which <think> blocks of learned replies are learned (spans); filled: those with text"
    )
    default_system: str | None = supported(
        None, "system text of records without one (spans); default: that of the template"
    )
    role_map: str | None = supported(None, "more names of roles in the data: name=user,name2=assistant")
    role_aliases: bool = supported(False, "accept user, assistant, chatgpt, ... too; always on with spans")
    on_bad_sample: Literal["error", "skip", "repair"] | None = supported(
        None, "records that FastChat cannot read; default error, with spans skip"
    )
    data_format: str = supported(
        "auto", "what records are: auto, sharegpt, messages, alpaca, prompt_completion, question_answer, text"
    )
    overlong: Literal["truncate", "split"] = supported(
        "truncate", "conversations longer than a row: truncate, or split as FastChat's own script"
    )
    boundary_tokens: Literal["merge", "split"] = supported(
        "merge", "a token of prompt and reply together: learned as one, or two as inference has them (spans)"
    )
    check_data: bool = supported(False, "label the data, print the report and stop before weights are loaded")
    dump_masked: int = supported(0, "print this many samples with learned text marked")
    report_bad: str | None = supported(
        None, "list bad records here, a line of JSON each: file, line, byte, reason"
    )
    max_record_bytes: int = supported(
        MAX_RECORD_BYTES, "bytes that one record may have; a longer one stops the run"
    )
    data_cache: str | None = supported(None, "where labelled data is kept, or none; default ~/.cache/fastsft")

    def check_flags(self) -> None:
        """Raise ValueError for values that are unknown, out of range or contradictory."""
        check_data_format(self.data_format)
        if self.max_record_bytes < 1:
            raise ValueError(f"--max_record_bytes: expected at least 1, got {self.max_record_bytes}")
        check_share(self.max_dropped)
        check_eval_split(self.eval_split, self.eval_data_path)
        if self.dump_masked < 0:
            raise ValueError(f"--dump_masked: expected 0 or more samples, got {self.dump_masked}")
        check_lazy_split(self.lazy_preprocess, self.overlong)

    @property
    def has_evaluation(self) -> bool:
        """True if the flags name data to evaluate on."""
        return self.eval_data_path is not None or self.eval_split != 0

    def check_files(self) -> None:
        """Raise ValueError for wrong flags, for missing files, and if there is no file to train on."""
        for name, path in (("data_path", self.data_path), ("eval_data_path", self.eval_data_path)):
            if not isinstance(path, str | os.PathLike | None):
                raise ValueError(
                    f"{name}: expected the names of files as one text (a.json,b.json), got "
                    f"{type(path).__name__}; records in memory are the train_dataset of fastsft.Trainer"
                )
            try:
                _ = data_files(str(path)) if path is not None else []
            except ValueError as error:
                raise ValueError(f"--{name}: {error}") from None
        if self.data_path is None:
            raise ValueError("--data_path: expected a file of conversations, got none; give --data_path FILE")
        self.check_flags()


def check_share(max_dropped: float) -> None:
    """Raise ValueError unless --max_dropped is between 0 and 1."""
    if not 0 <= max_dropped <= 1:
        percent = f"; {max_dropped:g} % is {max_dropped / 100:g}" if 1 < max_dropped <= 100 else ""
        raise ValueError(f"--max_dropped: expected a share from 0 to 1, got {max_dropped:g}{percent}")


def check_eval_split(share: float, eval_data_path: str | None) -> None:
    """Raise ValueError unless --eval_split is 0, or a fraction or count without --eval_data_path."""
    if not isinstance(share, int | float) or isinstance(share, bool):
        raise ValueError(f"--eval_split: expected a number (0 is off), got {share!r}")
    if not 0 <= share < math.inf or (share > 1 and share != int(share)):
        percent = f"; {share:g} % is {share / 100:g}" if 1 < share < 100 else ""
        raise ValueError(
            "--eval_split: expected a fraction below 1 or a number of conversations (0 is off), got "
            f"{share:g}{percent}"
        )
    if share and eval_data_path is not None:
        raise ValueError(
            f"--eval_split {share:g} takes the data to evaluate on from --data_path, and --eval_data_path "
            f"{eval_data_path} names other data; leave one of them out"
        )


def check_lazy_split(lazy_preprocess: bool, overlong: str) -> None:
    """Raise ValueError for --lazy_preprocess together with --overlong split."""
    if lazy_preprocess and overlong == "split":
        raise ValueError(
            "--overlong split makes several rows of a record, --lazy_preprocess one; leave one of them out"
        )


@dataclass
class ModelArguments(RecordsGiven):
    """The model to fine-tune."""

    model_name_or_path: str | None = supported("facebook/opt-125m", "directory or hub name")
    trust_remote_code: bool = supported(
        False, "run the model class of the directory's own code (auto_map), by the generic engine"
    )
    padding_side: str = supported("right", "right; written to the saved tokenizer")
