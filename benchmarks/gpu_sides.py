"""The sides of benchmarks/gpu.py: tinyformer on CuPy, PyTorch and Hugging Face on the GPU. Each is a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

import generate
import measure
import train_step
from configurations import GPTConfiguration
from measure import Side


class OnCuPy(Side):
    """A side that computes with tinytensor on CuPy."""

    def imported(self) -> None:
        super().imported()
        from tinytensor.backend import xp

        self.xp = xp
        self.free = xp.cuda.runtime.memGetInfo()[0]

    def finish(self) -> None:
        self.xp.cuda.Device().synchronize()

    def device_memory(self) -> dict[str, int]:
        """Bytes: what CuPy's pool holds, which is the most that it ever needed, and what the GPU lost since the imports."""
        pool = self.xp.get_default_memory_pool().total_bytes()
        return {"reserved": pool, "driver": self.free - self.xp.cuda.runtime.memGetInfo()[0]}

    def machine(self) -> dict[str, str]:
        """The GPU and its software."""
        runtime = self.xp.cuda.runtime
        name = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        version = runtime.runtimeGetVersion()
        return {
            "GPU": f"{name}, {measure.megabytes(runtime.memGetInfo()[1])} MB",
            "driver": _driver(),
            "CUDA runtime": f"{version // 1000}.{version % 1000 // 10}",
        }


def _driver() -> str:
    """The driver's version, from its own tool."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown (nvidia-smi does not tell)"


class OnTorch(measure.TorchSide):
    """A side that computes with PyTorch on the GPU, float32 products in TF32; ``device`` "cpu" is for tests."""

    device: str
    precision_of_products = "high"

    def imported(self) -> None:
        super().imported()
        import torch

        self.cuda = torch.cuda if self.device == "cuda" else None
        torch.set_float32_matmul_precision(self.precision_of_products)
        self.free = self.cuda.mem_get_info()[0] if self.cuda else 0

    def finish(self) -> None:
        if self.cuda:
            self.cuda.synchronize()

    def device_memory(self) -> dict[str, int]:
        """Bytes: the most that tensors took, the most that PyTorch's pool held, and what the GPU lost since the imports."""
        if not self.cuda:
            return {}
        driver = self.free - self.cuda.mem_get_info()[0]
        return {
            "allocated": self.cuda.max_memory_allocated(),
            "reserved": self.cuda.max_memory_reserved(),
            "driver": driver,
        }


class Tinyformer(OnCuPy, train_step.Tinyformer):
    """A training step in blocks."""

    def __init__(self, configuration: GPTConfiguration, dtype: str, block: int = 1):
        self.block = block
        super().__init__(configuration, shards=1, dtype=dtype)

    def kernel_times(self, steps: int) -> tuple[dict[str, tuple[int, float]], float]:
        """See ``kernel_times.measured``."""
        import kernel_times

        return kernel_times.measured(self.step, steps, self.xp.cuda)


class PyTorch(OnTorch, train_step.PyTorch):
    """The same in PyTorch; ``options`` are those of ``train_step.PyTorch``."""

    def __init__(self, configuration: GPTConfiguration, block: int, device: str, options: Mapping[str, bool]):
        self.block, self.device = block, device
        super().__init__(configuration, device=device, **options)


class Learner(OnCuPy):
    """A model that learns a text's characters, with nanoGPT's settings for them."""

    def __init__(self, configuration: GPTConfiguration, dtype: str, steps: int, data: str | None):
        super().__init__()
        import tinytensor as tt
        from tinyformer.data.reading import open_text
        from tinyformer.data.text import TextBatches
        from tinyformer.models.gpt import GPT, GPTConfig
        from tinyformer.tokenizers import CharTokenizer
        from tinyformer.training.config import TrainingConfig
        from tinyformer.training.evaluation import evaluate
        from tinyformer.training.runs import RunFolder
        from tinyformer.training.trainer import Trainer

        self.imported()
        self.evaluate = evaluate
        text, source = open_text(data)
        self.source = source.name
        tokenizer = CharTokenizer.train(text)
        config = TrainingConfig(steps=steps, batch_size=configuration.batch_size, warmup=steps // 10, shards=1, dtype=dtype)
        tt.seed(config.seed)
        batches = TextBatches(tokenizer.encode(text), configuration.block_size, config.batch_size, config.seed)
        model = GPT(GPTConfig(**{**configuration.model(), "vocab_size": tokenizer.vocab_size}))
        self.trainer = Trainer(model, batches, config, RunFolder("never-written"))

    def learn(self) -> dict[str, Any]:
        """The losses of all steps, read at the end, and the validation loss."""
        trainer = self.trainer
        losses = [trainer.train_step()[0] for _ in range(trainer.config.steps)]
        return {
            "losses": [float(loss) for loss in losses],
            "validation": self.evaluate(trainer.model, trainer.batches),
            "text": self.source,
        }


class Writer(OnCuPy, generate.Tinyformer):
    """Greedy decoding."""


class HuggingFace(OnTorch, generate.HuggingFace):
    """Hugging Face's ``generate``, float32 products in float32."""

    precision_of_products = "highest"

    def __init__(self, task: generate.Task, device: str):
        self.device = device
        super().__init__(task, compiled=False, device=device)


class Machine(OnCuPy):
    """A side that only looks."""

    def __init__(self) -> None:
        super().__init__()
        self.imported()
