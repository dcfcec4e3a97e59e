"""Run tests of the kernels as on processors that this machine does not have. No part of .ci/run.

    python tests/processors.py avx2            # x86-64 without AVX-512, then without AVX2
    python tests/processors.py arm64 [FOLDER]  # ARM64, emulated by QEMU

``arm64`` needs root and ``apt install qemu-user-static debootstrap``. It makes a Debian in FOLDER, or uses the one there, with
this environment's versions of packages. A small GPT is trained and generates in int8: its losses, tokens and logits must be
those of this machine. Then tests run. Emulation is about ten times slower, and most of the time goes into compiling. So with
compiled kernels only those tests run that depend on a processor's instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "numpy numba platformdirs regex safetensors threadpoolctl tqdm pytest pytest-timeout hypothesis ml_dtypes".split()

# By LLVM's name of a processor: its number in /proc/cpuinfo, and its features there. Only the first has ``sdot``.
FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
ARM = {
    "cortex-a76": ("0xd0b", f"{FEATURES} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"),
    "cortex-a72": ("0xd08", FEATURES),
}
ARM_TESTS = [  # the processor, the kernels, files of tests, and which of their tests
    ("cortex-a76", "numba", "kernels quantized block_dots compiled_products", ""),
    ("cortex-a72", "numba", "quantized block_dots", ""),
    ("cortex-a76", "numpy", "kernels quantized ops", ""),
    ("cortex-a76", "numba", "ops", "softmax or layer_norm or gelu or cross_entropy or (attention and not multi_head)"),
]
X86 = {"haswell": "+avx2,+f16c,+fma", "nehalem": ""}  # LLVM's names of processors, and features that kernels ask for

X86_TESTS = "kernels compiled compiled_products quantized block_dots attention_kernel elementwise summation"

# How far figures may be apart. Sums are added up in another order. In int8 a value that lies between two integers may then be
# rounded to the other one, which changes a logit by up to a hundredth.
TOLERANCES = {"losses": 1e-5, "logits": 0.02, "tokens": 0}


def figures() -> dict[str, list[float]]:
    """Train a small GPT, then let it generate in int8."""
    import tinytensor as tt
    from tinyformer import GPT, GPTConfig, Sampling, generate, quantize

    text = np.frombuffer((ROOT / "LICENSE").read_bytes(), np.uint8).astype("int64") % 128
    tt.seed(0)
    model = GPT(GPTConfig(vocab_size=128, block_size=32, num_layers=2, num_heads=2, d_model=64))
    optimizer, rng = tt.optim.AdamW(model.parameters(), lr=3e-3), np.random.default_rng(0)
    losses = []
    for _ in range(40):
        rows = text[rng.integers(len(text) - 33, size=(8, 1)) + np.arange(33)]
        logits = model(tt.tensor(rows[:, :-1]))
        loss = tt.functional.cross_entropy(logits.reshape(-1, 128), tt.tensor(rows[:, 1:].reshape(-1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
    quantize(model)
    tokens = list(generate(model, [int(x) for x in text[:5]], 27, Sampling(seed=0)))
    with tt.no_grad():
        logits = model(tt.tensor(text[None, :32]))
    return {"losses": losses, "tokens": tokens, "logits": logits.numpy().ravel().tolist()}


def run(python: str | Path, *words: str, **variables: str) -> str:
    """Run a Python program at the root of the checkout. Returns its last line. Exits if it fails."""
    print(f"{time.strftime('%X')} {' '.join(f'{k}={v}' for k, v in variables.items())} {shlex.join(words)}", flush=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"} | variables
    with subprocess.Popen([python, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for last in process.stdout:
            if not last.startswith("{"):
                print(last, end="", flush=True)
    if process.returncode:
        sys.exit(f"failed with exit status {process.returncode}")
    return last


def run_tests(python: str | Path, names: str, keyword: str = "", **variables: str) -> None:
    files = [f"tests/tinytensor/test_{name}.py" for name in names.split()]
    run(python, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=0", "-k", keyword, *files, **variables)


def make_root(folder: Path) -> None:
    """Unpack Debian's Python for ARM64, and this environment's packages from their wheels for ARM64. Nothing is installed."""
    debootstrap = "debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 bookworm".split()
    subprocess.run([*debootstrap, folder], check=True)
    for package in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    platforms = [f"--platform=manylinux{name}_aarch64" for name in ("2014", "_2_17", "_2_27", "_2_28")]
    options = ["--only-binary=:all:", "--python-version=3.11", f"--target={folder / 'packages'}", *platforms]
    packages = [f"{name}=={version(name)}" for name in PACKAGES]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *packages], check=True)
    # Programs that tests start need no support by the kernel: to them, this script is Python.
    (folder / "python").write_text(
        f"#!/bin/sh\nexport PYTHONHOME={folder}/usr PYTHONPATH={folder}/packages:{ROOT}\n"
        f'exec qemu-aarch64-static -cpu "$PROCESSOR" -L {folder} -0 {folder}/python {folder}/usr/bin/python3.11 "$@"\n'
    )
    (folder / "python").chmod(0o755)


def arm64(folder: Path) -> None:
    """Compare the figures of ARM64 with those of this machine, and run tests."""
    python = folder / "python"
    if not python.exists():
        make_root(folder)
    for kernels in ("numpy", "numba"):
        variables = as_processor("cortex-a76", kernels, folder)
        compare(*[json.loads(run(each, __file__, "figures", **variables)) for each in (sys.executable, python)])
    for processor, kernels, names, keyword in ARM_TESTS:
        run_tests(python, names, keyword, **as_processor(processor, kernels, folder))


def as_processor(processor: str, kernels: str, folder: Path) -> dict[str, str]:
    """Show LLVM a processor, which reads of it in this file: QEMU opens the folder's files instead of this machine's. Returns
    the variables that choose the same for QEMU, and the kernels."""
    number, features = ARM[processor]
    (folder / "proc/cpuinfo").write_text(f"Features : {features}\nCPU implementer : 0x41\nCPU part : {number}\n")
    return {"PROCESSOR": processor, "TINYTENSOR_KERNELS": kernels}


def compare(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    """Print how far the figures of two machines are apart. Exits if it is too far."""
    for name, tolerance in TOLERANCES.items():
        apart = float(np.abs(np.subtract(ours[name], theirs[name])).max())
        print(f"{name}: {apart:.2g} apart, at most {tolerance}", flush=True)
        if apart > tolerance:
            sys.exit("too far")


def avx2() -> None:
    """Run tests with code for older processors. Their names alone would leave this machine's features."""
    for processor, features in X86.items():
        run_tests(sys.executable, X86_TESTS, TINYTENSOR_KERNELS="numba", NUMBA_CPU_NAME=processor, NUMBA_CPU_FEATURES=features)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["arm64", "avx2", "figures"], help="figures: used by arm64")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("/var/tmp/arm64"))
    options = parser.parse_args()
    if options.what == "arm64":
        arm64(options.folder.resolve())
    elif options.what == "avx2":
        avx2()
    else:
        print(json.dumps(figures()))
