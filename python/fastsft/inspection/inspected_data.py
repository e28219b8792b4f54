"""The numbers and the chosen records of an inspection, which text and page show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastsft.inspection.inspected_record import InspectedRecord

if TYPE_CHECKING:
    from fastsft import _C


@dataclass(frozen=True, repr=False)
class InspectedData:
    """The fields of `fastsft.inspection.inspect.Inspection`, which says what each is."""

    data: str
    model: str
    width: int
    labelling: dict[str, Any]
    report: _C.DataReport
    faults: list[_C.RecordError]
    num_faults: int
    lengths: dict[int, int]
    learned: dict[int, int]
    num_matching: int
    records: list[InspectedRecord]
    unit: str = "tokens"

    def __repr__(self) -> str:
        """One line; `print` shows the records, and `summary` has the numbers."""
        report = self.report
        is_divided = report.num_whole < report.num_records
        of = f"rows of {report.num_whole:,} records" if is_divided else "records"
        return (
            f"<{type(self).__name__} of {self.data}: {report.num_records:,} {of}, {report.num_kept:,} "
            f"kept, {report.num_learned:,} of {report.num_tokens:,} {self.unit} learned, {self.num_faults:,} "
            "faults>"
        )

    @property
    def is_learnable(self) -> bool:
        """Training would start: something is learned, and no record stops it."""
        return self.report.num_learned > 0 and self.num_faults == 0

    @property
    def num_rows(self) -> int:
        return sum(self.lengths.values())

    @property
    def num_padding(self) -> int:
        """Padding that FastChat computes with: each row is filled up to the limit."""
        return self.num_rows * self.width - int(self.report.num_tokens)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The data set's object of data_report.json; also `faults`, `model_max_length`, `padding_tokens`.

        Without a model `unit`, "bytes", replaces the last two: what tokens and learned_tokens
        count.
        """
        limit = {"model_max_length": self.width, "padding_tokens": self.num_padding}
        return {
            **self.labelling,
            **json.loads(self.report.to_json()),
            "faults": self.num_faults,
            **(limit if self.unit == "tokens" else {"unit": self.unit}),
        }
