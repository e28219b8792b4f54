"""Every field of TrainingArguments with its views, before a rule has settled it: what rules work on."""

from __future__ import annotations

from fastsft.arguments.batches import BatchArguments
from fastsft.arguments.checkpoints import CheckpointArguments
from fastsft.arguments.derived import ArgumentViews
from fastsft.arguments.evaluation import EvaluationArguments
from fastsft.arguments.faults import FaultArguments
from fastsft.arguments.for_transformers import ForTransformers
from fastsft.arguments.given import RecordsGiven
from fastsft.arguments.hub import HubArguments
from fastsft.arguments.optimizer import OptimizerArguments
from fastsft.arguments.precision import PrecisionArguments
from fastsft.arguments.reports import ReportArguments
from fastsft.arguments.run import RunArguments
from fastsft.arguments.setters import ArgumentSetters
from fastsft.arguments.sharding import ShardingArguments


# Fields are in the order of the bases from the last to the first: output_dir is the first.
class ArgumentFields(
    ArgumentViews,
    ForTransformers,
    ArgumentSetters,
    HubArguments,
    FaultArguments,
    ShardingArguments,
    PrecisionArguments,
    CheckpointArguments,
    EvaluationArguments,
    ReportArguments,
    OptimizerArguments,
    BatchArguments,
    RunArguments,
    RecordsGiven,
):
    """No dataclass itself: TrainingArguments is the one that users make."""
