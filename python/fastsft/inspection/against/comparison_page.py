"""Shows a comparison as an HTML page: both rows of each record side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastsft.inspection.against.comparison import ComparedRecord, Comparison
from fastsft.inspection.against.differences import Cell
from fastsft.inspection.against.reasons import label_words, why
from fastsft.inspection.against.rows import Row, TokenTexts
from fastsft.inspection.inspection_page import RECORDS
from fastsft.reporting.page import card, html_page
from fastsft.reporting.page import html_text as _text


def comparison_page(comparison: Comparison) -> str:
    """Return the HTML page. Text of the data is escaped, and the page loads nothing."""
    title = f"fastsft against {comparison.title}"
    body = "".join(
        [
            f"<header><h1>{_text(title)}</h1>{_about(comparison)}</header>",
            f'<section class="cards">{"".join(_cards(comparison))}</section>',
            _kinds(comparison),
            _search(comparison),
            *(_record(number, record, comparison) for number, record in enumerate(comparison.records)),
        ]
    )
    rows = [_row(record, comparison.texts) for record in comparison.records]
    files = ("fastsft.inspection.against", "comparison_page")
    return html_page(title, body, ("records", rows), files, RECORDS)


def _about(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in comparison.versions.items())
    settings = " ".join(
        f"<code>{_text(f'{name}={value}')}</code>" for name, value in comparison.settings.items()
    )
    theirs = f"<b>{_text(comparison.title)}</b> {_text(versions)} {settings}"
    return (
        f"<p>{_text(comparison.data)} &middot; {_text(comparison.model)}</p>"
        f"<p><b>fastsft</b> {_text(comparison.labels)}</p><p>{theirs}</p>"
    )


def _cards(comparison: Comparison) -> Iterator[str]:
    shown, same = len(comparison.records), comparison.num_same
    yield card("records compared", f"{shown:,}", f"of {comparison.num_matching:,}")
    yield card("the same", f"{same:,}")
    yield card("different", f"{shown - same:,}")
    for title, name in (("fastsft", "ours"), (comparison.title, "theirs")):
        rows = [row for record in comparison.records if (row := getattr(record, name)) is not None]
        learned, total = sum(sum(row.learned) for row in rows), sum(len(row.ids) for row in rows)
        yield card(f"learned by {_text(title)}", f"{learned:,}", f"of {total:,} tokens")


def _kinds(comparison: Comparison) -> str:
    rows = "".join(
        f"<tr><td>{_text(kind)}</td><td>{count['records']:,}</td><td>{count['tokens']:,}</td>"
        f"<td>{count.get('ours', 0):,}</td><td>{count.get('theirs', 0):,}</td></tr>"
        for kind, count in comparison.counts().items()
    )
    head = (
        "<tr><th>kind of difference</th><th>records</th><th>tokens</th><th>learned: fastsft</th>"
        f"<th>{_text(comparison.title)}</th></tr>"
    )
    return f'<section class="kinds"><table>{head}{rows}</table></section>' if rows else ""


def _search(comparison: Comparison) -> str:
    shown, title = f"{len(comparison.records):,} records", _text(comparison.title)
    return (
        '<nav><input id="search" type="search" placeholder="search in texts, ids and kinds" '
        'aria-label="search">'
        f'<span id="count">{shown}</span><span class="legend"><mark class="k1">learned by both</mark> '
        '<mark class="differs ours">by fastsft alone</mark> '
        f'<mark class="differs theirs">by {title} alone</mark> '
        '<mark class="differs">differs</mark></span>'
        '<button id="all">open all</button></nav>'
        "<noscript>Records are drawn by this page's own script.</noscript>"
    )


def _record(number: int, record: ComparedRecord, comparison: Comparison) -> str:
    count = len(record.differences)
    outcome = "same" if record.is_same else f"{count} differ" if count else "left out"
    style = "same" if record.is_same else "different"
    items = "".join(
        f'<li><button class="jump" data-cell="{cell}">{_text(each.kind)}</button> '
        f"<code>{_text(repr(each.text))}</code> "
        f"fastsft {label_words(each.is_ours_learned)}, {_text(comparison.title)} "
        f"{label_words(each.is_theirs_learned)}{_because(why(each))}</li>"
        for cell, each in zip(_differing(record), record.differences, strict=True)
    )
    left = "".join(
        f"<li>left out by {_text(title)}: {_text(reason)}</li>"
        for title, row, reason in (
            ("fastsft", record.ours, record.our_reason),
            (comparison.title, record.theirs, record.their_reason),
        )
        if row is None
    )  # fmt: skip
    sides = " &middot; ".join(_numbers(title, row) for title, row in _sides(record, comparison))
    columns = "".join(
        f'<div class="column" data-side="{side}"><h2>{_text(title)}</h2><div class="text"></div></div>'
        for side, (title, _) in zip(("ours", "theirs"), _sides(record, comparison), strict=True)
    )
    return (
        f'<details data-number="{number}"><summary><span class="outcome {style}">{outcome}</span> '
        f"<b>{_text(record.name)}</b> <small>record {record.number}, line {record.line} &middot; {sides}"
        "</small>"
        f'</summary><ul>{left}{items}</ul><div class="columns">{columns}</div></details>'
    )


def _because(reason: str) -> str:
    return f"<small>: {_text(reason)}</small>" if reason else ""


def _sides(record: ComparedRecord, comparison: Comparison) -> list[tuple[str, Row | None]]:
    return [("fastsft", record.ours), (comparison.title, record.theirs)]


def _numbers(title: str, row: Row | None) -> str:
    if row is None:
        return f"{_text(title)}: left out"
    rows = f" in {row.num_rows} rows" if row.num_rows > 1 else ""
    return f"{_text(title)}: {sum(row.learned):,} of {len(row.ids):,} tokens learned{rows}"


def _differing(record: ComparedRecord) -> list[int]:
    return [number for number, cell in enumerate(record.cells) if not cell.is_equal]


def _row(record: ComparedRecord, texts: TokenTexts) -> dict[str, Any]:
    """Return what the script draws: for each cell its labels and, for each side, ids and texts."""
    differences = iter(record.differences)
    cells = []
    for cell in record.cells:
        about = next(differences) if not cell.is_equal else None
        said = [] if about is None else [about.kind, why(about)]
        cells.append(
            [
                _side(record.ours, cell.ours, texts),
                _side(record.theirs, cell.theirs, texts),
                *_labels(cell),
                said,
            ]
        )
    alone = [
        None if row is None or record.cells else [_side(row, (0, len(row.ids)), texts), row.learned]
        for row in (record.ours, record.theirs)
    ]
    return {"cells": cells, "alone": alone}


def _labels(cell: Cell) -> list[int]:
    return [-1 if each is None else int(each) for each in (cell.is_ours_learned, cell.is_theirs_learned)]


def _side(row: Row | None, span: tuple[int, int], texts: TokenTexts) -> list[Any]:
    """Return the place of the first token, ids and texts."""
    ids = row.ids[slice(*span)] if row is not None else []
    return [span[0], ids, _texts(ids, texts)]


def _texts(ids: list[int], texts: TokenTexts) -> list[str]:
    """Return each token's text; a character of several tokens is shown by the last of them."""
    shown: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = texts.of(pending)
        if "\ufffd" in text and len(pending) < 4:
            shown.append("")
            continue
        shown.append(text)
        pending = []
    return shown
