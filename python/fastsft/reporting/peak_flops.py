"""Peak throughput of a GPU, by its name, for the share of it that a run uses (MFU)."""

from __future__ import annotations

from dataclasses import dataclass

# Dense bfloat16 TFLOP/s of the vendor's data sheets. The first name that the device's name holds counts, so
# longer names come before shorter ones.
_PEAK_TFLOPS = (
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("B100", 1750.0),
    ("H100 NVL", 835.0),
    ("H100 PCIe", 756.0),
    ("H100", 989.0),
    ("H200 NVL", 835.0),
    ("H200", 989.0),
    ("GH200", 989.0),
    ("H800 PCIe", 756.0),
    ("H800", 989.0),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("A30", 165.0),
    ("A40", 149.7),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("RTX 6000 Ada", 364.2),
    ("RTX A6000", 154.8),
    ("RTX 5090", 209.5),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
)


def peak_flops(device_name: str) -> float | None:
    """FLOP/s of dense bfloat16 products; None for a device that is not in the table."""
    for name, tera in _PEAK_TFLOPS:
        if name.lower() in device_name.lower():
            return tera * 1e12
    return None


@dataclass(frozen=True)
class Work:
    """Cost of training on a token, and peak throughput of all devices together."""

    flops_per_token: float
    peak_flops: float

    def utilization(self, tokens_per_second: float) -> float:
        """MFU: the share of the peak."""
        return tokens_per_second * self.flops_per_token / self.peak_flops


def flops_per_token(cost: tuple[float, ...], num_tokens: float, num_pairs: float) -> float:
    """Mean over a data set of `num_tokens` tokens whose squared lengths sum to `num_pairs`.

    cost: _C.conversation_cost, whose quadratic part counts what attention's backward pass computes again; the
    usual counting has six sevenths of it.
    """
    linear, quadratic = cost[:2]
    return linear + 6 / 7 * quadratic * num_pairs / max(num_tokens, 1)


def work_of(trainer: object) -> Work | None:
    """The work of a trainer with data; None on a CPU, in float32, or on a GPU whose peak is not known."""
    args, rows = trainer.args, trainer.train_rows  # type: ignore[attr-defined]
    if args.device.type == "cpu" or not args.bf16 or not rows.is_exact:
        return None
    import torch

    peak = peak_flops(torch.cuda.get_device_name(args.device))
    if peak is None:
        return None
    lengths = rows.lengths.astype(float)
    cost = trainer.model.conversation_cost()  # type: ignore[attr-defined]
    per_token = flops_per_token(cost, float(lengths.sum()), float((lengths**2).sum()))
    return Work(per_token, peak * args.world_size)
