"""Calls that reach a Ray actor or an object of this process alike."""

from __future__ import annotations

import inspect
import os
import socket
import sys
from typing import Any


def has_method(target: Any, name: str) -> bool:
    """Whether `target`, an actor handle or an object, offers the method."""
    return callable(getattr(target, name, None)) or hasattr(getattr(target, name, None), "remote")


def is_actor(target: Any) -> bool:
    """Whether calls go through Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(target, ray.actor.ActorHandle)


def call(target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """The result of a method, waited for. What it raises, or Ray's error, is raised here."""
    method = getattr(target, name)
    if hasattr(method, "remote"):
        import ray

        return ray.get(method.remote(*args, **kwargs))
    result = method(*args, **kwargs)
    if inspect.isawaitable(result):
        return _run(result)
    return result


async def call_async(target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """`call` inside a coroutine."""
    method = getattr(target, name)
    result = method.remote(*args, **kwargs) if hasattr(method, "remote") else method(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def runtime_ids() -> tuple[str, str]:
    """(node, job): Ray's where it runs, else this machine's name and this process."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        context = ray.get_runtime_context()
        return str(context.get_node_id()), str(context.get_job_id())
    return socket.gethostname(), str(os.getpid())


def _run(awaitable: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())
