"""Calls methods with deadlines, on Ray actors and on objects in this process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def has_method(target: object, name: str) -> bool:
    """Return True if `target`, an actor handle or another object, has the method `name`."""
    return callable(getattr(target, name, None)) or hasattr(getattr(target, name, None), "remote")


def is_actor(target: object) -> bool:
    """Return True if `target` is a Ray actor handle."""
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(target, ray.actor.ActorHandle)


def call(target: object, name: str, *args: object, deadline_s: float, **kwargs: object) -> Any:
    """Call a method on `target` and return its result. Raises the method's error, or an error from Ray.

    RuntimeError if there is no answer within `deadline_s` seconds. A method in this process runs on its own
    thread, so that the caller can return at the deadline. The method itself continues.
    """
    method = getattr(target, name)
    if hasattr(method, "remote"):
        import ray

        try:
            return ray.get(method.remote(*args, **kwargs), timeout=deadline_s)
        except ray.exceptions.GetTimeoutError as error:
            raise _silent(name, deadline_s) from error
    return within(deadline_s, name, functools.partial(_result, method, args, kwargs))


async def call_async(target: object, name: str, *args: object, deadline_s: float, **kwargs: object) -> Any:
    """Call a method from a coroutine, as `call` does. A coroutine method runs in the caller's event loop."""
    method = getattr(target, name)
    if hasattr(method, "remote"):
        result = method.remote(*args, **kwargs)
    elif inspect.iscoroutinefunction(method):
        result = method(*args, **kwargs)
    else:
        result = await _awaited(name, asyncio.wrap_future(_on_thread(name, method, args, kwargs)), deadline_s)
    return await _awaited(name, result, deadline_s) if inspect.isawaitable(result) else result


def within(deadline_s: float, what: str, work: Callable[[], T]) -> T:
    """Call `work` on its own thread, and return its result. RuntimeError at the deadline.

    what: the work's name, for the message.
    """
    future = _on_thread(what, work, (), {})
    try:
        return future.result(deadline_s)
    except TimeoutError as error:
        if future.done():  # the work's own TimeoutError
            raise
        raise _silent(what, deadline_s) from error
    finally:
        del future  # breaks the reference cycle error -> this frame -> future -> error


def _on_thread(
    what: str, work: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object]
) -> Future[T]:
    """Call `work` on a daemon thread, so that the process does not wait for the thread at exit."""
    future: Future[T] = Future()
    context, settings = contextvars.copy_context(), _thread_settings()

    def run() -> None:
        try:
            with settings():
                result = context.run(work, *args, **kwargs)
            future.set_result(result)
        except BaseException as error:
            # The traceback leaves out this frame: it refers to the future, and would make a reference cycle.
            future.set_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))

    threading.Thread(target=run, name=f"call-{what}", daemon=True).start()
    return future


def _thread_settings() -> Callable[[], contextlib.ExitStack]:
    """Return a function that makes contexts.

    In such a context, another thread has this thread's torch settings.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return contextlib.ExitStack
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def settings() -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        if device is not None:
            stack.enter_context(torch.cuda.device(device))
        return stack

    return settings


def _result(method: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Call a method and return its result. If the result is awaitable, wait for it."""
    result = method(*args, **kwargs)
    return asyncio.run(_waited(result)) if inspect.isawaitable(result) else result


async def _waited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def runtime_ids() -> tuple[str, str]:
    """Return (node id, job id): Ray's ids if Ray is initialized, else the host name and the process id."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        context = ray.get_runtime_context()
        return str(context.get_node_id()), str(context.get_job_id())
    return socket.gethostname(), str(os.getpid())


async def _awaited(name: str, awaitable: Awaitable[Any], deadline_s: float) -> Any:
    try:
        return await asyncio.wait_for(awaitable, deadline_s)
    except TimeoutError as error:
        raise _silent(name, deadline_s) from error


def _silent(name: str, deadline_s: float) -> RuntimeError:
    return RuntimeError(
        f"{name}: no answer within {deadline_s:g} seconds; is the actor, or the object that has it, alive, "
        "or busy?"
    )
