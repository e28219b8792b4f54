"""Describe labelled data in lines of text, and stop a run whose data has too few labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.errors import EXPECTED, DataError, format_titles
from fastsft.data.interfaces import WITHOUT_ROW
from fastsft.runtime.messages import warn_once
from fastsft.runtime.terminal import one_line
from fastsft.sources.data_files import DataFile

_LOSES = ("unlabelled", "dropped", "excluded")
# Issues that are often consequences of other issues. Messages prefer the other issues.
_AFTER_A_CUT = ("ends_with_user", "empty_last_reply")


def check_dropped(path: str, report: _C.DataReport, max_dropped: float, template: str = "") -> None:
    """Raise DataError if nothing is learned, or if a larger fraction than `max_dropped` has no label.

    template: the name of the labels' template.
    """
    missing, total = report.num_without_labels, report.num_records
    if report.num_learned > 0 and missing <= max_dropped * total:
        return
    if total == 0:
        raise DataError(
            f"{path}: expected conversations, got no record; docs/data_files.md has an example of each format"
        )
    unit = "rows" if report.num_whole < total else "conversations"
    reason = f"{missing} of {total} {unit} have no label, --max_dropped {max_dropped:g} allows fewer"
    if report.num_learned == 0:
        reason = "nothing in this file is learned"
    calls = calls_note(report, template)
    lines = [*_causes(report), calls, "fastsft inspect shows such records", report.summary()]
    raise DataError("\n  ".join([f"{path}: {reason}", *filter(None, lines)]))


def _causes(report: _C.DataReport) -> Iterator[str]:
    """Yield reasons for missing labels: unknown format, conversations that are too long, commonest issue."""
    lost = {name: _num_lost(entry) for name, entry in report.entries.items()}
    if has_no_format(report):
        yield f"its records are of no data format that is read: {', '.join(format_titles())}"
    if count := lost.get("no_reply_left"):
        yield f"of {count:,} no reply begins within --model_max_length: raise it"
    names = [
        name for name, entry in report.entries.items() if (entry.reason or name in EXPECTED) and lost[name]
    ]
    if names:
        most = max(names, key=lambda name: (lost[name], name not in _AFTER_A_CUT))
        if reason := report.entries[most].reason:
            yield f"{report.entries[most].first[0]}: {reason}"
        if most in EXPECTED:
            yield f"expected {EXPECTED[most]}"


def _num_lost(entry: _C.ReportEntry) -> int:
    """Return how many records have no label because of the issue `entry`."""
    return sum(entry.actions.get(action, 0) for action in _LOSES)


def result_lines(report: _C.DataReport, max_length: int, template: str = "") -> Iterator[str]:
    """Yield lines about tool calls, totals and issues, and rows that are cut at `max_length` tokens."""
    if calls := calls_note(report, template):
        yield calls
    yield report.summary()
    if cut := report.num_truncated:
        longest = f"--model_max_length {max_length}"
        yield f"{cut:,} row{' is' if cut == 1 else 's are'} cut at {longest}, or left out beyond it"


def shared_line(path: str, rows: _C.TokenDataset, trained: _C.TokenDataset) -> str:
    """Return a line that counts evaluation rows that are also in the training data; "" if 0."""
    count = _C.count_shared_rows(rows, trained)
    if count == 0:
        return ""
    whole = "all its rows" if count == len(rows) else f"{count:,} of its {len(rows):,} rows"
    return (
        f"{path}: {whole} are in the training data, too, and their loss says how well these are known by "
        "heart; evaluate on records that --data_path does not have (shares of one file, as in a.json:0.9 and "
        "a.json:0.1, have records in common)"
    )


_MOST_LINES = 5
_UNREADABLE = ("no_conversations", "not_an_object")  # issues of a record that no data format can read
_CALLS = ("a message's tool_calls", "a message's function_call")


def format_lines(files: Sequence[DataFile], report: _C.DataReport | _C.ConvertSummary) -> list[str]:
    """Return a line for each file with records, such as "data.json: Alpaca, 52,002 records; not used: text".

    If there are more than five files, files with the same format share a line. If no record has a known
    format, there are no lines, because such records are counted as ShareGPT.
    """
    if has_no_format(report):
        return []
    uses = [(file.path, use) for file, use in zip(files, report.formats, strict=True) if use.num_records]
    if len(uses) <= _MOST_LINES:
        return [one_line(f"{path}: {describe_use(use)}") for path, use in uses]
    groups: dict[tuple[str, ...], list[tuple[str, _C.FormatUse]]] = {}
    for path, use in uses:
        groups.setdefault(_kind(use), []).append((path, use))
    return [one_line(_line_of_many(group)) for group in groups.values()]


def format_totals(report: _C.DataReport) -> list[str]:
    """Return a line for each format, with the records of all its files, such as "Alpaca, 52,002 records"."""
    if has_no_format(report):
        return [f"none that is known, {report.num_records:,} record{'' if report.num_records == 1 else 's'}"]
    groups: dict[tuple[str, ...], list[_C.FormatUse]] = {}
    for use in report.formats:
        if use.num_records:
            groups.setdefault(_kind(use), []).append(use)
    totals = [(group[0], sum(use.num_records for use in group)) for group in groups.values()]
    return [one_line(describe_use(use, total)) for use, total in totals]


def has_no_format(report: _C.DataReport | _C.ConvertSummary) -> bool:
    """True if there are records, but no data format could read any record."""
    entries = getattr(
        report, "entries", {}
    )  # a ConvertSummary has no entries, because `data convert` stops at the first error
    unreadable = [entries[name] for name in _UNREADABLE if name in entries]
    return 0 < report.num_records == sum(sum(entry.actions.values()) for entry in unreadable)


def has_calls(use: _C.FormatUse) -> bool:
    """True if messages of the file have tool calls that are not used.

    use: the file's format and unused fields.
    """
    return any(name in use.unused for name in _CALLS)


def calls_note(report: _C.DataReport | _C.ConvertSummary, template: str = "") -> str:
    """Return a line about tool calls that are not trained; "" if there are none.

    template: the name of the labels' template. Tool calls are trained only with a model's own template that
    writes tool calls.
    """
    if not any(map(has_calls, report.formats)):
        return ""
    way = (
        "the model's own template writes none: one that does goes into chat_template.jinja of the model's "
        "directory"
        if template == "model"
        else "--template model trains calls where the model's own template writes them"
    )
    return (
        "tool calls are not trained with these labels: a turn with a reply that is a call without a text "
        f"is left out; --mask_policy spans does not learn the text next to a call either (tool_call); {way}"
    )


def describe_use(use: _C.FormatUse, count: int | None = None) -> str:
    """Describe the format, record count and unused fields of a file.

    count: the record count if `use` stands for several files.
    """
    total = use.num_records if count is None else count
    column = f' (as "{use.column}")' if use.column else ""
    unused = f"; not used: {', '.join(use.unused)}" if use.unused else ""
    return f"{use.title}{column}, {total:,} record{'' if total == 1 else 's'}{unused}"


def _kind(use: _C.FormatUse) -> tuple[str, ...]:
    return (use.title, use.column, *use.unused)


def _line_of_many(group: Sequence[tuple[str, _C.FormatUse]]) -> str:
    (path, use), more = group[0], len(group) - 1
    others = f" and {more} more file{'' if more == 1 else 's'}" if more else ""
    return f"{path}{others}: {describe_use(use, sum(file_use.num_records for _, file_use in group))}"


class TemplateTokens(Protocol):
    """The members of a tokenizer that `check_embedding` uses."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    def encode(self, text: str, /) -> list[int]: ...
    def decode(self, ids: Iterable[int], /) -> str: ...


def check_embedding(tokenizer: TemplateTokens, settings: LabelSettings, rows: int) -> None:
    """Raise ValueError, before data is labelled, if the chat template has a token without an embedding row.

    settings: the result of `resolve_policy`. rows: the embedding's row count. If only tokens outside of
    the template have no row, print a warning that a conversation with such a token ends the run.
    """
    if tokenizer.vocab_size <= rows:
        return
    uses_own = settings.mask_policy == "spans" and settings.template in (None, "model")
    template = (tokenizer.chat_template or "") if uses_own else ""
    beyond = [token for token in tokenizer.encode(template) if token >= rows]
    if beyond:
        raise ValueError(
            f"the chat template has {one_line(tokenizer.decode(beyond[:1]))} (token id {beyond[0]}): "
            f"expected ids below {rows}, the rows of the model's embedding; {WITHOUT_ROW}"
        )
    warn_once(
        f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model's embedding {rows:,} rows: a "
        f"conversation with a token beyond them ends the run; {WITHOUT_ROW}"
    )
