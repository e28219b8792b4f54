"""The site of docs/: every page has its place, first page and flags are as the hook makes them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    sections = [section for entry in CONFIG["nav"] for section in entry.values()]
    listed = [
        page for section in sections if isinstance(section, list) for e in section for page in e.values()
    ]
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert all((ROOT / "docs" / name).exists() for name in CONFIG["extra_css"])


def test_the_first_page_leads_to_pages() -> None:
    page = hook().first_page((ROOT / "README.md").read_text("utf-8"))
    targets = re.findall(r"\]\(([^)]*)\)", page)
    assert {"lora" + ".md"} <= set(targets)
    assert not any(target.startswith(("docs/", "CONTRIBUTING")) for target in targets)


def test_a_flag_stays_whole() -> None:
    html = "<p><code>a --max_dropped 1</code></p><pre><code>--x <span>y</span></code></pre>"
    made = hook().unbroken_flags(html)
    assert '<code>a <span class="flag">--max_dropped</span> 1</code>' in made
    assert '<span class="flag">-m</span> fastsft' in hook().unbroken_flags("<code>python -m fastsft</code>")
    assert hook().unbroken_flags("<code>a-b</code>") == "<code>a-b</code>"
    assert made.endswith("<pre><code>--x <span>y</span></code></pre>")
    text = hook().unbroken_flags("<p>what --data_path takes (--x) a--b</p> --y")
    assert text == (
        '<p>what <span class="flag">--data_path</span> takes (<span class="flag">--x</span>) a--b</p> --y'
    )


def test_the_api_page_has_public_names() -> None:
    """Each block of mkdocstrings has a name that a user can import."""
    blocks = (ROOT / "docs" / "api.md").read_text("utf-8").split("::: ")[1:]
    for block in blocks:
        name = block.split("heading: ", 1)[1].split("\n", 1)[0].split(",")[0].strip("} ")
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
