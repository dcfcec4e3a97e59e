"""What is known of the processor that Numba compiles for."""

from __future__ import annotations

import functools

_AMD = ("znver", "bdver", "btver", "amdfam")  # how LLVM's names of AMD's processors begin


@functools.cache
def _compiled_for() -> tuple[str, str, list[str]]:
    """The system, the name of the processor and its features, as LLVM calls them.

    They depend on nothing but what Numba compiles for, by which it also tells apart the compiled code that it keeps.
    """
    from numba.core.registry import cpu_target

    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return triple, name, features.split(",")


@functools.cache
def has(feature: str) -> bool:
    """Whether the processor has a feature, such as "avx512f"."""
    return f"+{feature}" in _compiled_for()[2]


def reads_several_rows() -> bool:
    """Whether a weight is read from memory faster if a loop reads several of its rows at once. It is so on Intel's processors
    (30 instead of 26 GB/s). AMD's foresee only one stream that is read in order (33 instead of 16 GB/s with one thread)."""
    triple, name, _ = _compiled_for()
    return triple.startswith("x86_64") and not name.startswith(_AMD)
