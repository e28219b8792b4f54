"""Calls that reach a Ray actor or an object of this process alike."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
from collections.abc import Awaitable
from typing import Any


def has_method(target: object, name: str) -> bool:
    """True if `target`, an actor handle or an object, offers the method."""
    return callable(getattr(target, name, None)) or hasattr(getattr(target, name, None), "remote")


def is_actor(target: object) -> bool:
    """True if calls go through Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(target, ray.actor.ActorHandle)


def call(target: object, name: str, *args: object, deadline_s: float, **kwargs: object) -> Any:
    """The result of a method, waited for. What it raises, or Ray's error, is raised here.

    RuntimeError when an actor or a coroutine gives none within `deadline_s` seconds; a plain method of this
    process takes the time that it takes.
    """
    method = getattr(target, name)
    if hasattr(method, "remote"):
        import ray

        try:
            return ray.get(method.remote(*args, **kwargs), timeout=deadline_s)
        except ray.exceptions.GetTimeoutError as error:
            raise _silent(name, deadline_s) from error
    result = method(*args, **kwargs)
    if inspect.isawaitable(result):
        return asyncio.run(_within(name, result, deadline_s))
    return result


async def call_async(target: object, name: str, *args: object, deadline_s: float, **kwargs: object) -> Any:
    """`call` inside a coroutine."""
    method = getattr(target, name)
    result = method.remote(*args, **kwargs) if hasattr(method, "remote") else method(*args, **kwargs)
    return await _within(name, result, deadline_s) if inspect.isawaitable(result) else result


def runtime_ids() -> tuple[str, str]:
    """(node, job): Ray's where it runs, else this machine's name and this process."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        context = ray.get_runtime_context()
        return str(context.get_node_id()), str(context.get_job_id())
    return socket.gethostname(), str(os.getpid())


async def _within(name: str, awaitable: Awaitable[Any], deadline_s: float) -> Any:
    try:
        return await asyncio.wait_for(awaitable, deadline_s)
    except TimeoutError as error:
        raise _silent(name, deadline_s) from error


def _silent(name: str, deadline_s: float) -> RuntimeError:
    return RuntimeError(f"{name}: no answer within {deadline_s:g} seconds; is the actor alive, or busy?")
