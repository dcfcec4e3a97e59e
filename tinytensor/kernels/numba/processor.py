"""The processor that Numba compiles for, and its second core.

Two cores read memory faster than one, so a second thread helps with products of large weights. Their rows are cut into parts,
and each thread takes the next free one. A helper that starts late, or not at all because other programs use the core, only does
less. The bits do not depend on who computes a part.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tinytensor.device.cores import cores

_AMD = ("znver", "bdver", "btver", "amdfam")  # prefixes of LLVM's names of AMD's processors
_ARM = ("aarch64", "arm64")  # prefixes of LLVM's names of ARM's systems
_DOT = """
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @dot(<16 x i8> %x, <16 x i8> %y) {
    %a = sext <16 x i8> %x to <16 x i32>
    %b = sext <16 x i8> %y to <16 x i32>
    %products = mul <16 x i32> %a, %b
    %sum = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %products)
    ret i32 %sum
}
"""


@functools.cache
def _compiled_for() -> tuple[str, str, list[str]]:
    """Return the system, the name of the processor and its features, as LLVM calls them.

    Numba compiles for them, and caches compiled code by them.
    """
    from numba.core.registry import cpu_target

    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return triple, name, features.split(",")


@functools.cache
def has(feature: str) -> bool:
    """Return True if the processor has this feature, such as "avx512f"."""
    triple, name, features = _compiled_for()
    if feature == "dotprod" and triple.startswith(_ARM):
        return compiles_to_sdot(triple, name, ",".join(features))
    return f"+{feature}" in features


def compiles_to_sdot(triple: str, name: str, features: str) -> bool:
    """Return True if LLVM compiles a dot product of bytes to ``sdot`` for this ARM processor.

    The features that LLVM detects lack "dotprod", even if the processor's name implies it.
    """
    from llvmlite import binding

    machine = binding.Target.from_triple(triple).create_target_machine(cpu=name, features=features)
    return "sdot" in machine.emit_assembly(binding.parse_assembly(_DOT))


def reads_several_rows() -> bool:
    """Return True if a weight is read faster from memory several rows at a time. So it is on Intel's processors (30 instead of
    26 GB/s). AMD's prefetch only one sequential stream (33 instead of 16 GB/s with one thread)."""
    triple, name, _ = _compiled_for()
    return triple.startswith("x86_64") and not name.startswith(_AMD)


@functools.cache
def has_second_core() -> bool:
    """Return True if a second thread may run. As for BLAS, OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 forbid it."""
    if "1" in (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS")):
        return False
    return cores() > 1


class Helper:
    """A thread that calls one function after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        threading.Thread(target=self._work, name="tinytensor-helper", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> None:
        """Let the thread call the function soon. If an earlier call still waits, no core is free, and nothing is called."""
        if self._calls.empty():
            self._calls.put(function)

    def _work(self) -> None:
        while True:
            self._calls.get()()


@functools.cache
def helper() -> Helper:
    """Return the helper of this process."""
    return Helper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=helper.cache_clear)  # a child has none of its parent's threads
