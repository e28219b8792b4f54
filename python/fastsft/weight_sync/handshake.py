"""Before any byte of a weight moves: do both sides mean the same version of the same tensors?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.transport import AgreedError, Transport

_WHAT = "the handshake"


def offer(transport: Transport, plan: SyncPlan, header: dict[str, Any]) -> None:
    """The sender's side. RuntimeError when a receiver refuses, in its words."""
    transport.announce({**header, "hash": plan.hash, "generation": transport.generation})
    answers = transport.vote({}, _WHAT)
    if any(answer.get("other_plan") for answer in answers):
        _exchange_plans(transport, plan, None)


def accept(
    transport: Transport, plan: SyncPlan, check: Callable[[dict[str, Any]], str | None]
) -> dict[str, Any]:
    """The receiver's side: the header. RuntimeError when this or another receiver refuses.

    check: why the header is refused, or None.
    """
    header = transport.announce({})
    why = check(header)
    answer: dict[str, Any] = {"error": why} if why else {"other_plan": header["hash"] != plan.hash}
    answers = transport.vote(answer, _WHAT)
    if any(answer.get("other_plan") for answer in answers):
        _exchange_plans(transport, plan, plan)
    return header


def _exchange_plans(transport: Transport, plan: SyncPlan, own: SyncPlan | None) -> None:
    """The sender's plan goes to all, so that whoever has another one can say where; always raises."""
    import torch

    text = plan.to_json().encode() if own is None else b""
    length = int(transport.announce({"bytes": len(text)})["bytes"])
    data = (
        torch.frombuffer(bytearray(text), dtype=torch.uint8).clone()
        if text
        else torch.empty(length, dtype=torch.uint8)
    )
    data = data.to(transport.device)
    transport.wait(transport.broadcast(data), "the broadcast of the plan")
    answer: dict[str, Any] = {}
    if own is not None:
        sent = SyncPlan.from_json(bytes(data.cpu().numpy()).decode())
        difference = own.difference(sent, "the receiver's plan", "the sender's plan")
        answer = {"error": difference} if difference else {}
    transport.vote(answer, _WHAT)
    raise AgreedError(f"{_WHAT}: plans differ")
