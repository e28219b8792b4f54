"""check_prose.py finds long sentences and paragraphs; the pages have none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_prose

ROOT = Path(__file__).parents[1]
CLEAN = """# A page

![it stands beside the bar](pictures/behind.png)

One word `stands` for code. Read [the page](beside.html) first, e.g. its top.

<!-- mended
afresh -->

```sh
echo besides  # lies
```

* a list item:

    still an item, not code
* another one

| name | meaning |
|---|---|
| `behind` | a cell |

Lines of output:

    rank 0: stands still
"""
BROKEN = [
    ("Short.\n\n" + "Four words are here. " * 21, 3, "text of 84 words, at most 80; split it"),
    ("* fine\n* " + "Four words are here. " * 21, 2, "text of 84 words, at most 80"),
    ("| a |\n|---|\n| " + "word " * 81 + "|\n", 3, "cell of 81 words, at most 80"),
    ("# Title\n\n" + "word " * 17 + "end.\n", 1, "18.0 words in the mean sentence, at most 16"),
    ("One two three. " + "Word " * 30 + "end. It.\n", 1, "17.0 words in the mean sentence"),
]


def test_documents_read_well() -> None:
    script = ROOT / "scripts" / "check_prose.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_all_documents_are_checked() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in check_prose.pages()}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"} <= names
    assert names == {
        page.relative_to(ROOT).as_posix() for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    }


def test_code_links_pictures_and_comments_are_not_prose() -> None:
    assert check_prose.faults(CLEAN) == []


@pytest.mark.parametrize(("text", "line", "message"), BROKEN)
def test_faults_are_found(text: str, line: int, message: str) -> None:
    found = check_prose.faults(text)
    assert [fault.line for fault in found] == [line]
    assert message in found[0].message


def test_sentences_end_where_they_end() -> None:
    text = "Use `a. B` (and `c`, ...) in 5 s, e.g. here. `go()` ends (so it does). torch goes\nbut not again."
    assert check_prose.sentence_lengths(text) == [9, 5, 5]


def test_command_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page"
    page.write_text("# Page\n\n" + "Four words are here. " * 21)
    assert check_prose.main(["--table", str(page)]) == 1
    written = capsys.readouterr().out
    assert f"{page}:3: text of 84 words, at most 80" in written
    assert "4.0" in written
