"""`fastsft doctor`: what is sound is ok, each thing that is broken is named, and nothing stays on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_patient import DATA, Patient, checks_of, tree
from fastsft import _C
from fastsft.cli import main as cli


def test_a_sound_run(patient: Patient, tmp_path: Path) -> None:
    before = tree(tmp_path)
    found = patient(skip="", eval_data_path=str(DATA))
    assert patient.status == 0, patient.text
    assert {mark for mark, _ in found.values()} == {"ok"}, patient.text
    assert patient.text.splitlines()[-1] == "13 ok, 0 warnings, 0 failed"
    parameters = sum(int(size) for size in [2 * 32000 * 16, 4 * 16 * 16, 3 * 16 * 24, 3 * 16])
    for name, part in (
        ("configuration", "7 flags set"),
        ("model", f"{parameters:,} parameters"),
        ("weights", "F32"),
        ("template", "--mask_policy fastchat, template vicuna_v1.1, stop token </s>"),
        ("data", "the first 200 records, 0.0% of them cut off: 200 conversations"),
        ("eval data", "the first 200 records, 0.0% of them cut off: 200 conversations"),
        ("disk rate", "64.0 MiB written and synced"),
        ("communication", "one rank: none is needed"),
    ):
        assert part in found[name][1]
    assert tree(tmp_path) == before, "the doctor left something"


def test_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    assert cli.main(["doctor"]) == 0
    found = checks_of(capsys.readouterr().out)
    assert _C.torch_version in found["torch"][1]
    assert list(found) == ["python", "torch", "GPUs", "threads", "extras"]
    assert "there: parquet" in found["extras"][1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--output_dri", "x"], "output_dir"),
        (["--max_steps", "many"], "--max_steps"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_words(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    printed = capsys.readouterr()
    assert part in printed.err and not printed.out


@pytest.mark.parametrize("words", [["--skip", "wheather"], ["--records", "0"]])
def test_bad_words_of_its_own(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", *words])
    assert end.value.code == 2 and words[0] in capsys.readouterr().err


def test_every_refusal_is_listed_and_what_is_ignored_is_named(patient: Patient) -> None:
    found = patient(optim_args="a=b", optim="lion", logging_steps="0", ddp_broadcast_buffers="True")
    mark, text = found["configuration"]
    assert (mark, patient.status) == ("failed", 1)
    for part in ("--optim_args", "--optim", "--logging_steps", "--ddp_broadcast_buffers True"):
        assert part.split()[0] in text, text
    assert found["data"][0] == "ok", "the other checks go on"
    mark, text = patient(ddp_broadcast_buffers="True")["configuration"]
    assert (mark, patient.status) == ("warning", 0) and "--ddp_broadcast_buffers has no effect" in text


def test_flags_of_a_file(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("save_only_model: true\neval_strategy: steps\neval_steps: 5\n")
    mark, text = patient("--config", str(tmp_path / "run.yaml"))["configuration"]
    assert mark == "warning" and "nothing is evaluated" in text


def test_lines_fit_their_page(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    patient(ddp_broadcast_buffers="True")
    folder = str(patient.output.parent)
    assert all(len(line) <= 80 or folder in line or str(DATA) in line for line in patient.text.splitlines())
