"""Shows an inspection as an HTML page whose script draws each opened record."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from fastsft.data.chat.labelling import WHY
from fastsft.inspection.inspection_text import bins, median, percent, turn_ends, verdict
from fastsft.reporting.chart import bar_chart
from fastsft.reporting.page import card, html_page
from fastsft.reporting.page import html_text as _text

if TYPE_CHECKING:
    from fastsft.inspection.inspected import InspectedData, InspectedRecord, InspectedToken

RECORDS = ("fastsft.inspection", "records_page")  # files of every page with records
_FRAME_HEIGHT = 640  # pixels
_DOT = "\u00b7"
_MOST_OF_A_CHARACTER = 8  # the most tokens that are joined until their bytes are whole characters
_KINDS = {"context": 0, "learned": 1, "end": 2}


def page(inspection: InspectedData) -> str:
    """Return the HTML page. Text of the data is escaped, and invisible characters are written as escapes."""
    body = "".join(
        [
            f"<header><h1>{_text(inspection.data)}</h1>{_labels(inspection)}</header>",
            *(f'<p class="alarm" role="alert">{_text(line)}</p>' for line in verdict(inspection)),
            f'<section class="cards">{"".join(_cards(inspection))}</section>',
            _reasons(inspection),
            f'<section class="charts">{_chart("Tokens of a row", inspection.lengths)}'
            f"{_chart('Learned tokens of a row', inspection.learned)}</section>",
            _search(inspection),
            *(_record(number, record) for number, record in enumerate(inspection.records)),
        ]
    )
    rows = [_row(record) for record in inspection.records]
    files = ("fastsft.inspection", "inspection_page")
    return html_page(f"{inspection.data}: what is learned", body, ("records", rows), files, RECORDS)


def frame(inspection: InspectedData) -> str:
    """Return the page in an iframe, which isolates its style and script from a notebook's."""
    return (
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{_FRAME_HEIGHT}px;border:0" '
        f'srcdoc="{escape(page(inspection))}"></iframe>'
    )


def _labels(inspection: InspectedData) -> str:
    labels = inspection.labelling
    why = f" &middot; {_text(labels[WHY])}" if labels.get(WHY) else ""
    return (
        f"<p>{_text(inspection.model)} &middot; <code>--mask_policy {_text(labels['mask_policy'])}</code> "
        f"&middot; template <code>{_text(labels['template'])}</code> &middot; stop token "
        f"<code>{_text(labels['stop_token'])}</code> &middot; at most {inspection.width:,} tokens{why}</p>"
    )


def _cards(inspection: InspectedData) -> Iterator[str]:
    report = inspection.report
    rows = inspection.num_rows * inspection.width
    numbers = [
        (
            f"rows of {report.num_whole:,} records" if report.num_whole < report.num_records else "records",
            f"{report.num_records:,}",
            f"{report.num_kept:,} kept",
        ),
        (
            "without a label",
            f"{report.num_without_labels:,}",
            f"{report.num_dropped:,} dropped, {report.num_excluded:,} excluded",
        ),
        ("fixed", f"{report.num_salvaged:,}", f"salvaged; {report.num_truncated:,} truncated"),
        ("tokens", f"{report.num_tokens:,}", f"median row {median(inspection.lengths):,}"),
        (
            "learned",
            f"{report.num_learned:,}",
            f"{percent(report.num_learned, report.num_tokens)} of all tokens",
        ),
        (
            "padding of FastChat",
            f"{inspection.num_padding:,}",
            f"{percent(inspection.num_padding, rows)} of its work; here none",
        ),
    ]
    for name, number, more in numbers:
        yield card(name, number, more)


def _reasons(inspection: InspectedData) -> str:
    entries = sorted(inspection.report.entries.items(), key=lambda item: -item[1].count)
    rows = "".join(
        f"<tr><td><code>{_text(name)}</code></td><td>{entry.count:,}</td>"
        f"<td>{percent(entry.count, inspection.report.num_records)}</td><td>"
        f"{', '.join(f'{action} {count:,}' for action, count in entry.actions.items())}</td>"
        f"<td>{_text(', '.join(entry.first))}{_why(entry.reason)}</td></tr>"
        for name, entry in entries
    )
    head = "<tr><th>remark</th><th>records</th><th></th><th>what became of them</th><th>first ids</th></tr>"
    return f'<section class="reasons"><table>{head}{rows}</table></section>' if rows else ""


def _why(reason: str) -> str:
    return f"<small>; the first one: {_text(reason)}</small>" if reason else ""


def _chart(title: str, counts: dict[int, int]) -> str:
    bars = bins(counts, 24)
    if not bars:
        return ""
    caption = f"{title} <small>median {median(counts):,}, most {max(counts):,}</small>"
    return f"<figure><figcaption>{caption}</figcaption>{bar_chart(title, bars, max(counts))}</figure>"


def _search(inspection: InspectedData) -> str:
    shown = f"{len(inspection.records):,} of {inspection.num_matching:,} matching records"
    return (
        '<nav><input id="search" type="search" placeholder="search in texts, ids and remarks" '
        f'aria-label="search"><span id="count">{shown}</span><span class="legend">'
        '<mark class="k1">learned</mark> <mark class="k2">end of a turn, learned</mark> '
        '<span>context</span> <span class="cut">cut</span></span><button id="all">open all</button></nav>'
        "<noscript>Records are drawn by this page's own script.</noscript>"
    )


def _record(number: int, record: InspectedRecord) -> str:
    outcome = "kept" if record.outcome == "noted" else record.outcome
    total, learned = len(record.tokens), record.num_learned
    numbers = f"{total:,} tokens, {learned:,} learned ({percent(learned, total)})" if total else "no row"
    remarks = "".join(
        f"<li><b>{_text(remark.action)}</b> <code>{_text(remark.name)}</code>"
        f"{f', message {remark.message}' if remark.message >= 0 else ''} {_text(remark.reason)}</li>"
        for remark in record.remarks
    )
    return (
        f'<details data-number="{number}"><summary><span class="outcome {outcome}">{outcome}</span> '
        f"<b>{_text(record.name)}</b> <small>record {record.number}, line {record.line} &middot; {numbers} "
        f"&middot; {turn_ends(record)}</small></summary><ul>{remarks}</ul>"
        '<div class="text"></div></details>'
    )


def _row(record: InspectedRecord) -> dict[str, Any]:
    cut = b"".join(part.text for part in record.parts() if part.kind == "cut")
    return {
        "ids": [token.id for token in record.tokens],
        "at": [token.begin for token in record.tokens],
        "kinds": "".join(str(_kind(token)) for token in record.tokens),
        "texts": list(_pieces(record)),
        "cut": cut.decode("utf-8", "replace"),
        "num_cut": record.num_cut,
        "messages": [list(message) for message in record.messages] if not record.tokens else [],
    }


def _kind(token: InspectedToken) -> int:
    return _KINDS["end" if token.is_turn_end else "learned" if token.is_learned else "context"]


def _pieces(record: InspectedRecord) -> Iterator[str | list[str]]:
    """Yield each token's text, or [its bytes in hex, text to show] if the bytes are empty or not UTF-8.

    If a character consists of several tokens, the first token shows the character, and the others show a dot.
    """
    rest = 0
    for number, token in enumerate(record.tokens):
        data = record.bytes_of(token)
        if rest:
            rest -= 1
            yield [data.hex(), _DOT]
            continue
        try:
            yield data.decode("utf-8") if data else ["", token.piece]
        except UnicodeDecodeError:
            spelt, rest = _divided(record, number)
            yield [data.hex(), spelt.decode("utf-8", "replace")]


def _divided(record: InspectedRecord, number: int) -> tuple[bytes, int]:
    """Return the bytes of the shortest valid text that begins at token `number`.

    Also return how many further tokens the text has.
    """
    spelt = b""
    for count, token in enumerate(record.tokens[number : number + _MOST_OF_A_CHARACTER]):
        spelt += record.bytes_of(token)
        try:
            spelt.decode("utf-8")
        except UnicodeDecodeError:
            continue
        return spelt, count
    return record.bytes_of(record.tokens[number]), 0
