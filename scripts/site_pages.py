"""A hook of mkdocs: README.md is the first page, and links out of docs/ become plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_CODE = re.compile(r"<code>([^<]*)</code>")
_FLAG = re.compile(r"(?<![\w-])--?\w[\w-]*")
_PARAGRAPH = re.compile(r"<p>.*?</p>", re.S)
_FLAG_IN_TEXT = re.compile(r"(?<=[\s(])--\w[\w-]*")
_SPAN = r'<span class="flag">\g<0></span>'
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def first_page(readme: str) -> str:
    """README.md as a page of docs/: its links lead to pages, those to other files of the tree are text."""
    text = readme.replace("](docs/pictures/", "](pictures/")
    return _LINK.sub(lambda m: f"[{m[1]}]({m[2].removeprefix('docs/')})" if _stays(m[2]) else m[1], text)


def _stays(target: str) -> bool:
    return target.startswith(("#", "http", "docs/"))


def without_outer_links(text: str) -> str:
    """A page whose links to files next to docs/ are their texts."""
    return _LINK.sub(lambda m: m[1] if m[2].startswith("../") else m[0], text)


def on_files(files: Any, config: Any) -> Any:
    """Add the first page."""
    from mkdocs.structure.files import File

    content = first_page((ROOT / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return without_outer_links(markdown)


def unbroken_flags(html: str) -> str:
    """Inline code and paragraphs whose flags are whole words: a browser breaks a line after any hyphen."""
    html = _CODE.sub(lambda m: f"<code>{_FLAG.sub(_SPAN, m[1])}</code>", html)
    return _PARAGRAPH.sub(lambda m: _FLAG_IN_TEXT.sub(_SPAN, m[0]), html)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page that became HTML. The class is the page's name, for site.css."""
    return f'<div class="page-{Path(page.file.src_uri).stem}">\n{unbroken_flags(html)}\n</div>'
