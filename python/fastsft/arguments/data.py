"""FastChat's DataArguments, and fastsft's own about data and labels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.given import RecordsGiven
from fastsft.arguments.support import used
from fastsft.sources.data_files import data_files
from fastsft.sources.readers import MAX_RECORD_BYTES, check_data_format


@dataclass
class DataArguments(RecordsGiven):
    """The conversations to learn from."""

    # None without their flags, and annotated as FastChat's are.
    data_path: str = used(  # type: ignore[assignment]
        None, "files of conversations: a.json,b.jsonl:0.5,c/*.parquet,hf://datasets/owner/name; - is stdin"
    )
    eval_data_path: str = used(None, "the same, for evaluation")  # type: ignore[assignment]
    lazy_preprocess: bool = used(False, "keep the rows that were asked for; all are labelled at the start")
    max_dropped: float = used(0.05, "stop above this fraction of samples without a label")
    legacy_warnings: bool = used(False, "also print FastChat's line for each drop")
    mask_policy: Literal["auto", "fastchat", "spans"] = used(
        "auto",
        "fastchat: FastChat's labels, drops included; spans: every reply of any template; auto: fastchat "
        "where FastChat works with the tokenizer, else spans",
    )
    template: str | None = used(
        None, "chat template by name, or model: its own; default with spans: model where it has one"
    )
    save_chat_template: Literal["trained", "base"] = used(
        "trained", "chat template of the saved model: the one of the labels, or the base model's as it is"
    )
    chat_template_name: str | None = used(
        None, "which of the model's named chat templates; default: by the tools of a record"
    )
    template_date: str | None = used(
        None,
        "date that a chat template is told, such as 2026-11-26; default: today, resumed: that of the start",
    )
    train_turns: Literal["all", "last", "each"] = used(
        "all", "which replies are learned (spans); each: all, every one in a row of its own"
    )
    role_map: str | None = used(None, "more names of roles in the data: name=user,name2=assistant")
    role_aliases: bool = used(False, "accept user, assistant, chatgpt, ... too; always on with spans")
    on_bad_sample: Literal["error", "skip", "repair"] | None = used(
        None, "records that FastChat cannot read; default error, with spans skip"
    )
    data_format: str = used(
        "auto", "what records are: auto, sharegpt, messages, alpaca, prompt_completion, question_answer, text"
    )
    overlong: Literal["truncate", "split"] = used(
        "truncate", "conversations longer than a row: truncate, or split as FastChat's own script"
    )
    boundary_tokens: Literal["merge", "split"] = used(
        "merge", "a token of prompt and reply together: learned as one, or two as inference has them (spans)"
    )
    check_data: bool = used(False, "label the data, print the report and stop before weights are loaded")
    dump_masked: int = used(0, "print this many samples with learned text marked")
    report_bad: str | None = used(
        None, "list bad records here, a line of JSON each: file, line, byte, reason"
    )
    max_record_bytes: int = used(
        MAX_RECORD_BYTES, "bytes that one record may have; a longer one stops the run"
    )
    data_cache: str | None = used(None, "where labelled data is kept, or none; default ~/.cache/fastsft")

    def check_flags(self) -> None:
        """ValueError for values that there are not, and for two that contradict each other."""
        check_data_format(self.data_format)
        if self.max_record_bytes < 1:
            raise ValueError(f"--max_record_bytes: expected at least 1, got {self.max_record_bytes}")
        check_share(self.max_dropped)
        if self.dump_masked < 0:
            raise ValueError(f"--dump_masked: expected 0 or more samples, got {self.dump_masked}")
        check_lazy_split(self.lazy_preprocess, self.overlong)

    def check_files(self) -> None:
        """`check_flags`; ValueError for a file that does not exist, and where none is named to train on."""
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
            raise ValueError("--data_path: expected a file of conversations, got none")
        self.check_flags()


def check_share(max_dropped: float) -> None:
    """ValueError for a --max_dropped that is no share of the data."""
    if not 0 <= max_dropped <= 1:
        percent = f"; {max_dropped:g} % is {max_dropped / 100:g}" if 1 < max_dropped <= 100 else ""
        raise ValueError(f"--max_dropped: expected a share from 0 to 1, got {max_dropped:g}{percent}")


def check_lazy_split(lazy_preprocess: bool, overlong: str) -> None:
    """ValueError for --lazy_preprocess with --overlong split."""
    if lazy_preprocess and overlong == "split":
        raise ValueError(
            "--overlong split makes several rows of a record, --lazy_preprocess one; leave one of them out"
        )
