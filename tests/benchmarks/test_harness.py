"""The harness alternates, takes medians of pairwise ratios, refuses unequal results. No speed is tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import harness
import workloads


def sides(order: list[str], baseline: list[float], ours: list[float]) -> tuple[harness.Side, harness.Side]:
    def side(name: str, values: list[float]) -> harness.Side:
        remaining = iter(values)

        def run() -> harness.Run:
            order.append(name)
            value = next(remaining)
            return harness.Run({"rate": value}, evidence=value)

        return run

    return side("A", baseline), side("B", ours)


def test_sides_alternate_and_warm_up_does_not_count() -> None:
    order: list[str] = []
    a, b = sides(order, [1, 10, 20, 40], [100, 20, 20, 120])
    ratio = harness.paired(a, b, pairs=3, warm_up=1)["rate"]
    assert order == ["A", "B"] * 4
    assert (ratio.median, ratio.minimum, ratio.maximum) == (2.0, 1.0, 3.0)
    assert (ratio.baseline, ratio.ours) == (20, 20)


def test_unequal_results_void_the_timing_even_in_warm_up() -> None:
    a, b = sides([], [1.0, 1.0], [2.0, 1.0])
    with pytest.raises(harness.UnequalResultsError, match="losses differ"):
        harness.paired(
            a, b, pairs=1, warm_up=1, check=lambda x, y: harness.check_losses([x], [y], 0.5) and None
        )


@pytest.mark.parametrize("ours", [[1.0, 2.1], [1.0, float("nan")], [1.0]])
def test_losses_must_agree(ours: list[float]) -> None:
    assert harness.check_losses([1.0, 2.0], [1.0, 2.05], 0.06) == pytest.approx(0.05)
    with pytest.raises(harness.UnequalResultsError):
        harness.check_losses([1.0, 2.0], ours, 0.06)


def test_record_holds_ratios_settings_and_versions(tmp_path: Path) -> None:
    a, b = sides([], [10, 10], [20, 30])
    results = harness.paired(a, b, pairs=2, warm_up=0)
    record = json.loads(harness.write_result("example", results, {"threads": 2}, tmp_path).read_text())
    assert record["ratios"]["rate"]["median"] == 2.5
    assert record["ratios"]["rate"]["pairs"] == [[10, 20], [10, 30]]
    assert record["settings"] == {"threads": 2}
    assert {"torch", "python", "fastsft"} <= set(record["versions"])
    assert record["hardware"]["cores"] >= 1


def test_a_side_in_its_own_process(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code = "import sys, os; open(sys.argv[1], 'w').write('[' + os.environ['X'] + ']')"
    assert harness.run_json([sys.executable, "-c", code, str(report)], report, env={"X": "3"}) == [3]
    with pytest.raises(RuntimeError, match="disk is on fire"):
        harness.run_json([sys.executable, "-c", "raise SystemExit('disk is on fire')"], report)
    assert not report.exists(), "a failed run must not leave the report of the run before"


def test_peak_memory_belongs_to_this_process_image() -> None:
    code = "import harness; print(harness.peak_resident_bytes())"
    ballast = bytearray(300 << 20)
    ballast[:: 1 << 12] = b"x" * len(ballast[:: 1 << 12])
    folder = Path(harness.__file__).parent
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert 1 << 20 < int(child.stdout) < 150 << 20
    assert harness.peak_resident_bytes() > 300 << 20


def test_full_rows_are_long_and_alternate(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "a" * 50}, {"from": "gpt", "value": "b" * 50}]
    odd = [{"from": "gpt", "value": "b"}, *turns]
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"id": "1", "conversations": turns}, {"id": "2", "conversations": odd}]))
    rows = json.loads(workloads.make("full", data, tmp_path, 3, 100).read_text())
    assert len(rows) == 3
    for row in rows:
        assert [turn["from"] for turn in row["conversations"]] == ["human", "gpt"] * 6
    assert len(json.loads(workloads.make("dummy", data, tmp_path, 5, 100).read_text())) == 5
