"""Recorder of cases.zip, the parsing files of JSONTestSuite, from a checkout in the working directory.

`git clone https://github.com/nst/JSONTestSuite` makes one. `NOTICE.md` has the licence.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from recording import Recorder, each_file

FOLDER = Path("JSONTestSuite", "test_parsing")


def write(path: Path) -> None:
    files = sorted(FOLDER.glob("*.json"))
    assert files, f"expected {FOLDER} in the working directory; clone the repository there"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in files:
            archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes(), zipfile.ZIP_DEFLATED)


RECORDER = Recorder(libraries={}, parts=each_file({"cases.zip": write}))
