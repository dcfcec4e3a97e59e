"""Wrap each call of a function in a context. Generators and coroutines are in the context only while they run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any


def around(context: AbstractContextManager[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each call (or each step of a generator) enters the context again."""
    forms = function, getattr(function, "__call__", None)  # noqa: B004 (for callable objects)
    if any(map(inspect.isgeneratorfunction, forms)):
        return _around_items(context, function)
    if any(map(inspect.isasyncgenfunction, forms)):
        return _around_awaited_items(context, function)
    return _around_await(context, function) if any(map(inspect.iscoroutinefunction, forms)) else _around_call(context, function)


def _around_call(context: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return call


def _around_await(context: Any, function: Any) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with context:
            return await function(*args, **kwargs)

    return call


def _around_items(context: Any, function: Any) -> Any:
    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        items = function(*args, **kwargs)
        resume, sent = items.send, None
        while True:
            with context:
                try:
                    item = resume(sent)
                except StopIteration as end:
                    return end.value
            try:
                resume, sent = items.send, (yield item)
            except BaseException as error:  # thrown in by the caller, or GeneratorExit from close()
                resume, sent = items.throw, error

    return generate


def _around_awaited_items(context: Any, function: Any) -> Any:
    @functools.wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items = function(*args, **kwargs)
        resume, sent = items.asend, None
        while True:
            with context:
                try:
                    item = await resume(sent)
                except StopAsyncIteration:
                    return
            try:
                resume, sent = items.asend, (yield item)
            except BaseException as error:  # as above
                resume, sent = items.athrow, error

    return generate
