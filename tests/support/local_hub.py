"""A hub of data sets and models on this machine, to which the real client of huggingface_hub talks."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

Files = dict[str, bytes]


@dataclass
class LocalHub:
    """`repositories`: files by `owner/name` and revision. `asked`: the paths of the requests."""

    url: str = ""
    repositories: dict[str, dict[str, Files]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    gated: set[str] = field(default_factory=set)
    refuses: int = 0  # a status, with which every request ends
    seconds: float = 0.0  # that a file's content takes
    cuts: str = ""  # the end of a name; its content stops in the middle

    def add(self, name: str, files: Files, revision: str = "main") -> str:
        """The commit of `files`."""
        revisions = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        revisions[revision] = revisions[commit] = files
        return commit

    def environment(self, cache: Path) -> dict[str, str]:
        """Variables by which a process uses this hub, with a cache of its own."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}

    def use(self, patch: pytest.MonkeyPatch, cache: Path) -> None:
        """In this process."""
        from huggingface_hub import constants, file_download

        patch.setattr(constants, "ENDPOINT", self.url)
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):  # the second has a name of its own before release 1
            patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """It answers while the context lasts."""
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(path)
            if hub.refuses:
                return self._send(hub.refuses, {}, b"")
            found = _found(hub, path)
            if isinstance(found, str):
                status = 403 if found == "GatedRepo" else 404
                return self._send(status, {"X-Error-Code": found}, b"")
            return self._send(200, *found, cut=bool(hub.cuts) and path.endswith(hub.cuts))

        def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                if "/resolve/" in self.path:
                    time.sleep(hub.seconds)
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = self.close_connection or cut

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _found(hub: LocalHub, path: str) -> tuple[dict[str, str], bytes] | str:
    """Headers and body, or the error code of the hub."""
    is_list = path.startswith("/api/")
    address = path.removeprefix("/api").lstrip("/").removeprefix("datasets/").removeprefix("models/")
    owner, name, kind, rest = (address + "///").split("/", 3)
    if f"{owner}/{name}" in hub.gated:
        return "GatedRepo"
    revisions = hub.repositories.get(f"{owner}/{name}")
    if revisions is None:
        return "RepoNotFound"
    revision, _, file = (rest.rstrip("/") if kind else "main").partition("/")
    revision, file = unquote(revision), unquote(file)
    if revision not in revisions:
        return "RevisionNotFound"
    files = revisions[revision]
    commit = next(each for each, of in revisions.items() if of == files and len(each) == 40)
    if is_list and kind == "tree":
        tree = [{"type": "file", "oid": "0", "size": len(files[each]), "path": each} for each in files]
        return {"Content-Type": "application/json"}, json.dumps(tree).encode()
    if is_list:
        listed = {"id": f"{owner}/{name}", "sha": commit, "siblings": [{"rfilename": each} for each in files]}
        return {"Content-Type": "application/json"}, json.dumps(listed).encode()
    if file not in files:
        return "EntryNotFound"
    tag = hashlib.sha256(files[file]).hexdigest()
    return {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}, files[file]
