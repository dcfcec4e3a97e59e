"""Every name of PyTorch's that the guide for its users lists is one of PyTorch's."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

import pages
import torch

ROOTS: dict[str, Any] = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "optim": torch.optim,
    "x": torch.Tensor,
    "model": torch.nn.Module,
    "optimizer": torch.optim.Optimizer,
}
TABLES = pages.tables(pages.PAGES["docs/guides/from_pytorch.md"])


def exists(name: str) -> bool:
    root, *parts = name.split(".")
    value = ROOTS[root]
    for part in parts:
        if not hasattr(value, part):
            with suppress(ImportError, AttributeError):
                importlib.import_module(f"{value.__name__}.{part}")
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def test_every_name_of_pytorchs_in_the_tables_of_names_exists():
    names = [name for table in TABLES for name in pages.names(table, "PyTorch")]
    assert len(names) > 100
    assert [name for name in names if not exists(name)] == []
    assert not exists("torch.concatenation")
