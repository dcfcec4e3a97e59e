"""Hints for names from other libraries, such as ``x.view`` or ``tt.manual_seed``: the tinytensor equivalents.

Hints are the rows of ``names_elsewhere.md``, which the guides for PyTorch and NumPy users include. All other NumPy names also
have a hint.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tinytensor.device.backend import host

# The prefixes of PyTorch and NumPy names in the table, by the namespace where a name is missing.
_PREFIXES = {
    "tinytensor": ("torch", "F", "nn", "x", "np"),
    "tinytensor.autograd": ("torch.autograd",),
    "tinytensor.functional": ("F", "torch", "nn", "x", "np"),
    "tinytensor.linalg": ("torch.linalg", "np.linalg"),
    "tinytensor.nn": ("nn", "F"),
    "tinytensor.parallel": ("nn",),
    "tinytensor.distributed": ("torch.distributed", "nn.parallel"),
    "tinytensor.nn.init": ("nn.init",),
    "tinytensor.optim": ("optim", "nn.utils", "optim.lr_scheduler"),
    "tinytensor.random": ("torch", "np.random"),
    "Tensor": ("x", "torch", "F", "np"),
    "Module": ("model",),
    "Optimizer": ("optimizer",),
}
_IN_NUMPY = {  # where NumPy defines such names, and the prefix that users write
    "tinytensor": (host, "numpy."),
    "tinytensor.functional": (host, "numpy."),
    "tinytensor.linalg": (host.linalg, "numpy.linalg."),
    "tinytensor.random": (host.random.Generator, "numpy.random.default_rng()."),
    "Tensor": (host.ndarray, "x.numpy()."),
}
KEYWORDS = {  # argument names in PyTorch and NumPy
    "dim": "axis",
    "dims": "axis",
    "dim0": "axis1",
    "dim1": "axis2",
    "keepdim": "keepdims",
    "size": "shape",
    "correction": "ddof",
    "input": "x",
    "other": "y",
    "tensor": "x",
    "p": "ord",
    "unbiased": "ddof",
    "repeats": "reps",
    "value": "fill_value",
    "a": "x",
    "x1": "x",
    "x2": "y",
    "arrays": "tensors",
    "a_min": "min",
    "a_max": "max",
    "loc": "mean",
    "scale": "std",
    "diagonal": "k",
    "steps": "num",
    "shifts": "shift",
    "attn_mask": "mask",
    "start_dim": "start_axis",
    "end_dim": "end_axis",
    "gamma": "factor",
    "step_size": "every",
}
NEEDLESS = {  # PyTorch arguments without a counterpart
    "device": "nothing is moved to a device",
    "non_blocking": "nothing is moved to a device",
    "inplace": "nothing is computed in place",
    "out": "nothing is computed in place",
    "dtype": "x.astype(dtype) converts",
    "fused": "steps are fused where there are kernels",
    "foreach": "steps are fused where there are kernels",
    "capturable": "tt.capture takes the optimizer as it is",
    "generator": "each thread draws from its own generator, which tt.seed(0) starts",
    "elementwise_affine": "weight and bias are asked for one by one",
    "normalized_shape": "the last axis is normalized",
    "size_average": "reduction says it",
    "reduce": "reduction says it",
}
MISPLACED = {  # positions where PyTorch or NumPy takes another argument
    ("max", "axis"): "for the larger of two tensors there is tt.maximum",
    ("min", "axis"): "for the smaller of two tensors there is tt.minimum",
    ("layer_norm", "weight"): "there is no normalized_shape, as the last axis is normalized",
    ("rms_norm", "weight"): "there is no normalized_shape, as the last axis is normalized",
    ("grad", "output"): "call the function first, as in tt.grad(f(x), x)",
    ("gradcheck", "order"): "several inputs are one list, as in tt.gradcheck(f, [x, y])",
    ("MultiHeadAttention.forward", "is_causal"): "self-attention takes x alone; with cross=True it takes x and memory",
    ("one_hot", "num_classes"): "give their number, as in tt.one_hot(ids, 5)",
    ("normal", "std"): "the shape comes first, as in tt.random.normal((2, 3), 0, 1)",
    ("uniform", "high"): "the shape comes first, as in tt.random.uniform((2, 3), 0, 1)",
}


def _plain(cell: str) -> str:
    """Return a table cell without its markup. A link to a guide becomes the guide's name."""
    return re.sub(r"\[([^\]]*)\]\(([\w.]+)[^)]*\)", r"\1: docs/guides/\2", cell).replace("`", "")


@functools.lru_cache(maxsize=1)
def _answers() -> dict[str, tuple[str, str]]:
    """Map each name from PyTorch or NumPy, such as "x.view", to a hint and a note."""
    answers: dict[str, tuple[str, str]] = {}
    for line in Path(__file__).with_name("names_elsewhere.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) < 2 or cells[0] in ("PyTorch", "NumPy"):
            continue
        theirs, ours = re.findall(r"`([^`]*)`", cells[0]), re.findall(r"`([^`]*)`", cells[1])
        note = _plain(cells[2]) if len(cells) > 2 else ""
        for position, example in enumerate(theirs):
            here = ours[position] if len(ours) == len(theirs) else _plain(cells[1])
            name = re.match(r"[\w.]+", example)
            if name:
                whose = "NumPy" if example.startswith("np.") else "PyTorch"
                answer = (f"{whose}'s {example} is {here}", f" ({note})" if note else "") if here else (note, "")
                answers.setdefault(name[0].rstrip("."), answer)
    return answers


def missing(namespace: str, name: str, owner: Any, called: str = "") -> AttributeError:
    """Return the error for a missing attribute of ``owner``: the module ``namespace`` or an object of this class."""

    def text() -> str:
        answer = "" if name.startswith("_") else _answer(namespace, name, owner)
        return f"{called or namespace} has no {name!r}" + (f": {answer}" if answer else "")

    return AttributeError(_Text(text), name=name, obj=owner)


class _Text(functools.partial[str]):
    """A string that is built only when read, because ``hasattr`` and ``getattr`` discard most errors."""

    def __repr__(self) -> str:
        return self()

    def __reduce__(self) -> Any:
        return str, (self(),)


def _answer(namespace: str, name: str, owner: Any) -> str:
    answers = _answers()
    names = [f"{prefix}.{name}" for prefix in _PREFIXES.get(namespace, ())]
    for full in names:
        if full in answers:
            return "".join(answers[full])
    if hasattr(type(owner), f"{name}_") or f"{name}_" in getattr(owner, "__dict__", ()):
        return f"it is {name}_ here"
    inside = [answer for full, (answer, _) in answers.items() if full.startswith(tuple(f"{each}." for each in names))]
    if inside:
        return "; ".join(inside[:4])
    if name.endswith("_") and namespace == "Tensor":
        return "".join(answers["x.add_"])
    numpy, written = _IN_NUMPY.get(namespace, (None, ""))
    return f"{written}{name} is NumPy's, on arrays and without gradients" if hasattr(numpy, name) else ""


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a module. They give hints for missing names, and list only public names and
    ``__doc__`` and the like."""

    def answer(name: str) -> Any:
        raise missing(module, name, sys.modules[module])

    vars(sys.modules[module]).setdefault("__path__", [])  # makes ``from module import name`` ask the finder below

    def show() -> list[str]:
        names = vars(sys.modules[module])
        return sorted([*names["__all__"], *(name for name in names if name.startswith("__"))])

    return answer, show


class _Finder:
    """A finder that gives hints for failed imports, such as ``tinytensor.nn.functional``."""

    @staticmethod
    def find_spec(full: str, path: Any = None, target: Any = None) -> None:
        """Raise ImportError with the hint for this name, if there is one."""
        module, _, name = full.rpartition(".")
        if module in _PREFIXES and not name.startswith("_") and (answer := _answer(module, name, sys.modules.get(module))):
            raise ImportError(f"{module} has no {name!r}: {answer}", name=full)


sys.meta_path.append(_Finder)


class CalledModule(ModuleType):
    """A module that raises an error with a hint when called, as in PyTorch's ``tt.device("cpu")``."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError(f"{self.__name__} is a module: {_answer('tinytensor', self.__name__.rpartition('.')[2], self)}")


def public(names: Mapping[str, Any], modules: str) -> list[str]:
    """Return the public names of a package: names without a leading "_", and only these modules."""
    shown = [name for name, value in names.items() if not (name.startswith("_") or isinstance(value, ModuleType))]
    return sorted([*shown, *modules.split()])


class Count(int):
    """A number for ``x.size`` that raises an error with a hint when called, as in PyTorch's ``x.size()``."""

    def __call__(self, *axes: Any) -> Any:
        raise TypeError("x.size is the number of elements here: PyTorch's x.size() is x.shape, and x.size(0) is x.shape[0]")


def unknown_argument(function: str, name: str, known: Sequence[str]) -> TypeError:
    """Return the error for an unknown argument of a function."""
    ours = KEYWORDS.get(name, "")
    hint = f"{name} is {ours} here, and " if ours in known else ""
    hint = f"{NEEDLESS[name]}, and " if name in NEEDLESS else hint
    takes = f"its arguments are {', '.join(known)}" if known else "it takes none"
    return TypeError(f"{function} has no argument {name!r}: {hint}{takes}")
