"""Files whose values are read when they are used: ``load_mapped``, ``give_back``, and models that take such values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.device.disk import FileError
from tinytensor.io import as_numbers, give_back, load_mapped
from tinytensor.nn import init

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def write(path: Path, header: dict[str, Any], values: bytes, padding: int = 0) -> Path:
    """Write a safetensors file byte by byte."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + padding)
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    return path


def one(path: Path, dtype: str, shape: tuple[int, ...], values: bytes, **options: Any) -> Path:
    return write(path, {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(values)]}}, values, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape(dtype: str, tmp_path: Path) -> None:
    for number, shape in enumerate([(2, 3), (), (0,), (3, 0, 2), (1,)]):
        values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
        name = "BOOL" if dtype == "bool" else f"{values.dtype.kind.upper()}{8 * values.itemsize}"
        found = load_mapped(one(tmp_path / f"file {number}", name, shape, values.tobytes()))
        assert list(found) == ["x"]
        assert (found["x"].shape, found["x"].dtype) == (shape, dtype)
        np.testing.assert_array_equal(found["x"], values)


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)], ids=str)
def test_bfloat16_becomes_float32(shape: tuple[int, ...], tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    values = (np.asarray(values).view("uint32") & 0xFFFF0000).view("float32")  # of which bfloat16 keeps everything
    halves = (np.asarray(values).view("uint32") >> 16).astype("uint16")
    found = as_numbers(load_mapped(one(tmp_path / "file", "BF16", shape, halves.tobytes()))["x"])
    assert (found.shape, found.dtype) == (shape, np.float32)
    np.testing.assert_array_equal(found, values)


def test_several_tensors_with_metadata_at_odd_places(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
    }
    values = bytes([1, 2, 3]) + np.array([0.5, -2.0], "<f4").tobytes()
    found = load_mapped(write(tmp_path / "file", header, values, padding=1))
    assert {name: array.tolist() for name, array in found.items()} == {"a": [1, 2, 3], "b": [0.5, -2.0]}


def test_no_tensors(tmp_path: Path) -> None:
    assert load_mapped(write(tmp_path / "file", {}, b"")) == {}


def test_what_is_written_to_an_array_stays_in_memory(tmp_path: Path) -> None:
    tt.save({"x": tt.ones(3), "y": tt.ones(3)}, tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    first, second = load_mapped(tmp_path / "file"), load_mapped(tmp_path / "file")
    first["x"] += 1
    assert first["x"].tolist() == [2, 2, 2]
    assert first["y"].tolist() == second["x"].tolist() == [1, 1, 1]
    assert (tmp_path / "file").read_bytes() == before


def test_a_file_that_is_replaced_or_removed_meanwhile(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(100_000)
    tt.save({"x": tt.tensor(values)}, tmp_path / "file")
    found = load_mapped(tmp_path / "file")["x"]
    tt.save({"x": tt.zeros(100_000)}, tmp_path / "file")
    np.testing.assert_array_equal(found, values)
    (tmp_path / "file").unlink()
    np.testing.assert_array_equal(found, values)


def test_memory_that_is_given_back_is_read_again(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(100_000)
    tt.save({"a": tt.ones(777), "x": tt.tensor(values), "z": tt.ones(777)}, tmp_path / "file")
    found = load_mapped(tmp_path / "file")
    for part in (found["x"], found["x"].reshape(100, 1000), found["x"][3:], found["x"][:1]):
        give_back(part)
        np.testing.assert_array_equal(found["x"], values)
    give_back(np.ones(10_000))  # of no file: nothing happens
    give_back(as_numbers(load_mapped(one(tmp_path / "other", "BF16", (1,), b"\0\0"))["x"]))


def test_freeing_pages_keeps_their_neighbors(tmp_path: Path) -> None:
    tt.save({"a": tt.ones(777), "x": tt.ones(100_000), "z": tt.ones(777)}, tmp_path / "file")
    found = load_mapped(tmp_path / "file")
    found["a"][:] = 2
    found["z"][:] = 3
    give_back(found["x"])
    assert (set(found["a"].tolist()), set(found["x"].tolist()), set(found["z"].tolist())) == ({2}, {1}, {3})


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:8],
        lambda whole: whole[:-1],
        lambda whole: whole + b"x",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"\xff" * 8 + whole[8:],
        lambda whole: whole.replace(b'"F32"', b'"F64"'),
        lambda whole: whole.replace(b"[100]", b"[101]"),
        lambda whole: whole.replace(b"[100]", b"[-10]"),
        lambda whole: whole.replace(b"[0,400]", b"[4,400]"),
        lambda whole: whole.replace(b"[0,400]", b"[0,999]"),
        lambda whole: whole.replace(b'"x"', b"xxx"),
    ],
)
def test_damaged_files(damage: Any, tmp_path: Path) -> None:
    tt.save({"x": tt.ones(100)}, tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    assert damage(whole) != whole
    (tmp_path / "file").write_bytes(damage(whole))
    with pytest.raises(FileError, match="is not a whole safetensors file"):
        load_mapped(tmp_path / "file")


def test_invalid_files_and_unknown_dtypes(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder, not a safetensors file"):
        load_mapped(tmp_path)
    with pytest.raises(FileError, match="does not exist"):
        load_mapped(tmp_path / "nothing")
    with pytest.raises(FileError, match="has the dtype F8_E4M3, which tensors here cannot have"):
        load_mapped(one(tmp_path / "file", "F8_E4M3", (1,), b"\0"))


# --------------------------------------------------------------------------------------------- models that take such values


def test_skipped_makes_parameters_without_memory_and_without_random_numbers() -> None:
    tt.seed(0)
    expected = tt.random.normal(3).numpy()
    tt.seed(0)
    with init.skipped():
        layer, table, norm = nn.Linear(4, 5), nn.Embedding(6, 7), nn.LayerNorm(8)
        for parameter in (layer.weight, layer.bias, table.weight, norm.weight, norm.bias):
            assert isinstance(parameter, nn.Parameter)
            assert parameter.requires_grad
            assert parameter.dtype == np.float32
            assert not parameter.numpy().any()
            assert init.ones_(init.xavier_uniform_(parameter) if parameter.ndim == 2 else parameter) is parameter
            assert not parameter.numpy().any()
    assert (layer.weight.shape, table.weight.shape, norm.bias.shape) == ((5, 4), (6, 7), (8,))
    assert set(layer.weight.data.strides) == {0}
    np.testing.assert_array_equal(tt.random.normal(3).numpy(), expected)
    assert nn.Linear(4, 5).weight.numpy().any()  # afterwards as before


def test_skipped_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="of mine"), init.skipped():
        raise ValueError("of mine")
    assert nn.Linear(2, 2).weight.numpy().any()


@pytest.mark.needs("numpy")  # CuPy has no arrays that refuse it
def test_a_parameter_that_got_no_values_refuses_to_be_changed() -> None:
    with init.skipped():
        layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="read-only"):
        init.ones_(layer.weight)


def test_new_parameter() -> None:
    parameter = init.new_parameter((2, 3))
    assert (parameter.shape, parameter.dtype, parameter.requires_grad) == ((2, 3), np.float32, True)
    assert not parameter.numpy().any()
    assert init.new_parameter(3).shape == (3,)
    init.ones_(parameter)
    assert parameter.numpy().all()


def test_assigned_values_are_shared_and_others_copied() -> None:
    layer = nn.Linear(2, 3)
    weight, bias = tt.ones((3, 2)), tt.ones(3, dtype="float64")
    kept, parameter = layer.weight.data, layer.weight
    layer.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    assert layer.weight is parameter
    assert layer.weight.data is weight.data
    assert layer.weight.requires_grad
    assert (layer.bias.dtype, layer.bias.tolist()) == (np.float32, [1, 1, 1])
    layer.load_state_dict({"weight": tt.zeros((3, 2)), "bias": bias})
    assert layer.weight.data is weight.data  # without ``assign`` the values are copied into what is there
    assert weight.tolist() == [[0, 0], [0, 0], [0, 0]]
    assert kept is not weight.data


def test_arrays_can_be_assigned_and_are_learned_in_place() -> None:
    layer = nn.Linear(2, 1, bias=False)
    weight = tt.ones((1, 2)).data
    layer.load_state_dict({"weight": weight}, assign=True)
    assert layer.weight.data is weight
    layer(tt.tensor([[1.0, 2.0]])).sum().backward()
    tt.optim.SGD(layer.parameters(), lr=1.0).step()
    assert tt.tensor(weight).tolist() == [[0, -1]]


def test_a_gradient_of_before_is_forgotten() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer(tt.ones((1, 2))).sum().backward()
    layer.load_state_dict({"weight": tt.ones((1, 2))}, assign=True)
    assert layer.weight.grad is None


def test_nothing_is_assigned_if_a_shape_is_wrong() -> None:
    layer = nn.Linear(2, 3)
    before = layer.weight.data
    state = {"weight": tt.ones((3, 2)), "bias": tt.ones(4)}
    with pytest.raises(ValueError, match=r"bias: shape \(4,\) instead of \(3,\)"):
        layer.load_state_dict(state, assign=True)
    assert layer.weight.data is before


class Tied(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mean", tt.zeros(2))


def test_tied_parameters_stay_tied_and_buffers_are_assigned_too() -> None:
    model = Tied()
    weight, mean = tt.ones((2, 2)), tt.ones(2)
    model.load_state_dict({"second.weight": weight, "mean": mean}, assign=True)
    assert model.first.weight is model.second.weight
    assert model.first.weight.data is weight.data
    assert model.mean.data is mean.data
    assert not model.mean.requires_grad


def test_the_vector_of_padding_gets_no_gradient() -> None:
    tt.seed(0)
    plain, padded = nn.Embedding(5, 3), nn.Embedding(5, 3, padding_idx=2)
    padded.load_state_dict(plain.state_dict())
    ids = tt.tensor([[2, 1], [4, 2]])
    np.testing.assert_array_equal(padded(ids).numpy(), plain(ids).numpy())
    for layer in (plain, padded):
        (layer(ids) * 3.0).sum().backward()
    wanted = plain.weight.grad.numpy().copy()
    assert wanted[2].tolist() == [6, 6, 6]
    wanted[2] = 0
    np.testing.assert_array_equal(padded.weight.grad.numpy(), wanted)
    assert padded(tt.tensor(2)).shape == (3,)


def test_nothing_but_padding() -> None:
    layer = nn.Embedding(5, 3, padding_idx=2)
    layer(tt.tensor([2, 2])).sum().backward()
    assert not layer.weight.grad.numpy().any()
