"""Every folder of golden files has a recorder that names each of its files and the libraries that made it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import record as golden_record
import recording

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"

FOLDERS = golden_record.folders()
NOT_DATA = ("record.py", "NOTICE.md")
# Parts that take a second or two.
QUICK = ("labels_full/edge_cases.llama2_legacy.64.jsonl.gz", "models/llama", "tokenizers/llama2_legacy",
         "trainer/data", "trainer/model_tied", "trainer/schedules.json")  # fmt: skip


def files_of(folder: str) -> list[str]:
    root = GOLDEN / folder
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if name not in NOT_DATA and "__pycache__" not in name)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_recorder_names_every_file(folder: str) -> None:
    recorder = golden_record.load(folder)
    made = [name for part in recorder.parts.values() for name in part.files]
    assert sorted([*made, *recorder.given]) == files_of(folder)
    assert all(recorder.given.values())


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_recorder_names_exact_versions(folder: str) -> None:
    recorder = golden_record.load(folder)
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in recorder.libraries.values())


def test_loading_the_recorders_imports_no_recorded_library() -> None:
    code = (
        f"import sys; sys.path[:0] = {[str(GOLDEN), str(ROOT / 'tests/support')]!r}; import record\n"
        "libraries = [name for folder in record.folders() for name in record.load(folder).libraries]\n"
        "assert len(libraries) > 20\n"
        "found = {'fastchat', 'numpy', 'fastsft', *libraries} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(found)}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def checked(*names: str) -> None:
    folders = {name.partition("/")[0] for name in names}
    wrong = {line for folder in folders for line in golden_record.other_versions(golden_record.load(folder))}
    if wrong:
        pytest.skip("; ".join(sorted(wrong)))
    command = [sys.executable, str(GOLDEN / "record.py"), "--check", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_quick_recorders_give_the_stored_files() -> None:
    checked(*QUICK)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["families", "fp16", "labels_full", "lora", "models", "trainer"])
def test_recorders_give_the_stored_files(name: str) -> None:
    checked(name)


def test_a_difference_is_found(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    recording.write_json(first, {"loss": [1.0, 2.0], "step": 3, "sha256": "a"})
    for value, expected in (
        ({"loss": [1.0, 2.0], "step": 3, "sha256": "b"}, 0.0),
        ({"loss": [1.5, 2.0], "step": 3, "sha256": "a"}, 0.25),
        ({"loss": [1.0, 2.0], "step": 4, "sha256": "a"}, "/step: 3 became 4"),
        ({"loss": [1.0], "step": 3, "sha256": "a"}, "/loss: [1.0, 2.0] became [1.0]"),
        ({"loss": [1.0, 2.0], "sha256": "a"}, ": keys ['step']"),
    ):
        recording.write_json(second, value)
        assert recording.difference(first, second) == expected
    recording.write_json(second, {"loss": [1.5, 2.0], "step": 4, "sha256": "a"})
    assert recording.difference(first, second, noise=("step",)) == 0.25


def test_a_changed_tensor_is_found(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([1, 2])}, first)
    for tensors, expected in (
        ({"a": torch.tensor([2.0, -4.0]), "b": torch.tensor([1, 2])}, 0.25),
        ({"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([1, 3])}, "b: other values"),
        ({"a": torch.tensor([1.0]), "b": torch.tensor([1, 2])}, "a: another shape or dtype"),
        ({"a": torch.tensor([1.0, -4.0])}, "tensors ['b']"),
    ):
        save_file(tensors, second)
        assert recording.difference(first, second) == expected


def test_a_wrong_file_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(folder: Path) -> None:
        (folder / "labels.tsv").write_text("x")

    part = recording.Part(("labels.tsv",), write)
    recorder = recording.Recorder({}, {"labels.tsv": part})
    assert not golden_record.check(recorder, "chat_templates", part)
    assert "chat_templates/labels.tsv: another content, more than allowed" in capsys.readouterr().out


def test_other_versions_are_named() -> None:
    recorder = recording.Recorder({"torch": "0.1", "no-such-package": "1.0"}, {})
    first, second = golden_record.other_versions(recorder)
    assert first.startswith("torch: expected 0.1, got 2.") and first.endswith("; pip install torch==0.1")
    assert second.startswith("no-such-package: expected 1.0, got none")
