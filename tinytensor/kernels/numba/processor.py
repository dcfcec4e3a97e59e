"""What is known of the processor that Numba compiles for."""

from __future__ import annotations

import functools

_AMD = ("znver", "bdver", "btver", "amdfam")  # how LLVM's names of AMD's processors begin
_ARM = ("aarch64", "arm64")  # how its names of ARM's systems begin
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
    """The system, the name of the processor and its features, as LLVM calls them.

    They depend on nothing but what Numba compiles for, by which it also tells apart the compiled code that it keeps.
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
    """Whether a weight is read from memory faster if a loop reads several of its rows at once. It is so on Intel's processors
    (30 instead of 26 GB/s). AMD's foresee only one stream that is read in order (33 instead of 16 GB/s with one thread)."""
    triple, name, _ = _compiled_for()
    return triple.startswith("x86_64") and not name.startswith(_AMD)
