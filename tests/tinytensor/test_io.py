"""Saving and loading: what comes back, and what happens when a file is not whole."""

import json
import os
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import backend
from tinytensor.io import atomic_write, load_with_metadata

DTYPES = ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (3, 0, 2), (1,)], ids=str)
def test_round_trip(dtype, shape, tmp_path):
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tt.save({"x": tt.tensor(values)}, tmp_path / "file")
    (name, back), *rest = tt.load(tmp_path / "file").items()
    assert (name, rest) == ("x", [])
    assert (back.shape, back.dtype) == (shape, dtype)
    np.testing.assert_array_equal(back.numpy(), values)


def test_views_are_saved_as_they_look(tmp_path):
    x = tt.tensor(np.arange(12.0).reshape(3, 4))
    views = {"T": x.T, "strided": x[:, ::2], "backwards": x[::-1], "stretched": tt.broadcast_to(x[:1], (3, 4))}
    tt.save(views, tmp_path / "file")
    back = tt.load(tmp_path / "file")
    for name, view in views.items():
        np.testing.assert_array_equal(back[name].numpy(), view.numpy())


def test_names_and_special_values(tmp_path):
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45], "float32")
    tt.save({"blocks.0.weight": tt.tensor(values), "ü": tt.ones(1)}, tmp_path / "file")
    back = tt.load(tmp_path / "file")
    assert set(back) == {"blocks.0.weight", "ü"}
    assert back["blocks.0.weight"].numpy().tobytes() == values.tobytes()


def test_metadata(tmp_path):
    tt.save({"x": tt.ones(1)}, tmp_path / "with", metadata={"step": "7", "note": "ö"})
    tt.save({"x": tt.ones(1)}, tmp_path / "without")
    assert load_with_metadata(tmp_path / "with")[1] == {"step": "7", "note": "ö"}
    assert load_with_metadata(tmp_path / "without")[1] == {}


def test_no_tensors_at_all(tmp_path):
    tt.save({}, tmp_path / "file")
    assert tt.load(tmp_path / "file") == {}


def test_loaded_tensors_can_be_learned(tmp_path):
    tt.save({"x": tt.ones(2)}, str(tmp_path / "file"))
    x = tt.load(str(tmp_path / "file"))["x"]
    assert not x.requires_grad
    x[0] = 5.0
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad.tolist() == [10, 2]


def test_tensors_with_a_history_are_saved_by_value(tmp_path):
    p = tt.nn.Parameter([1.0])
    tt.save({"p": p, "result": p * 2}, tmp_path / "file")
    assert tt.load(tmp_path / "file")["result"].tolist() == [2]


def test_the_format_is_safetensors(tmp_path):
    # Eight bytes for the header's length, the header in JSON, the values: read here without the package.
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file", {"a": "b"})
    content = (tmp_path / "file").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"] == {"a": "b"}
    assert (header["x"]["dtype"], header["x"]["shape"]) == ("F32", [2])
    start, end = header["x"]["data_offsets"]
    assert struct.unpack("<2f", content[8 + length :][start:end]) == (1, 2)


# -------------------------------------------------------------------------------------------------------------- bfloat16


def write_bfloat16(path, halves, shape):
    """A file with a tensor in bfloat16 between two others, made by hand from the first halves of float32 numbers."""
    values = {"a": np.float32([1.5]).tobytes(), "b": halves.tobytes(), "c": np.int64([7]).tobytes()}
    header, start = {}, 0
    for (name, content), dtype, lengths in zip(values.items(), ("F32", "BF16", "I64"), ([1], shape, [1])):
        header[name] = {"dtype": dtype, "shape": lengths, "data_offsets": [start, start + len(content)]}
        start += len(content)
    text = json.dumps({"__metadata__": {"k": "v"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.values()))


def test_every_number_of_bfloat16_is_read_exactly(tmp_path):
    halves = np.arange(2**16).astype("<u2")
    write_bfloat16(tmp_path / "file", halves, [256, 256])
    tensors, metadata = load_with_metadata(tmp_path / "file")
    assert metadata == {"k": "v"}
    assert (tensors["a"].tolist(), tensors["c"].tolist()) == ([1.5], [7])
    assert tensors["b"].dtype == ("float32" if backend.bfloat16 is None else "bfloat16")
    expected = (halves.astype("u4") << 16).view("f4").reshape(256, 256)
    np.testing.assert_array_equal(tensors["b"].astype("float32").numpy(), expected)


def test_a_scalar_and_nothing_in_bfloat16(tmp_path):
    for halves, shape in ((np.array([0x3FC0], "<u2"), []), (np.zeros(0, "<u2"), [3, 0])):
        write_bfloat16(tmp_path / "file", halves, shape)
        back = tt.load(tmp_path / "file")["b"]
        assert back.shape == tuple(shape)
        assert back.astype("float32").tolist() == (1.5 if shape == [] else [[], [], []])


def test_a_truncated_file_with_bfloat16(tmp_path):
    write_bfloat16(tmp_path / "file", np.zeros(100, "<u2"), [100])
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:-20])
    assert "not a whole safetensors file" in refused(tmp_path / "file")


@pytest.mark.needs("cupy")
def test_bfloat16_is_saved_as_such(tmp_path):
    x = tt.random.normal((3, 5)).astype("bfloat16")
    tt.save({"x": x, "T": x.T, "y": tt.ones(2)}, tmp_path / "file")
    back = tt.load(tmp_path / "file")
    assert {name: str(t.dtype) for name, t in back.items()} == {"x": "bfloat16", "T": "bfloat16", "y": "float32"}
    assert (back["x"].tolist(), back["T"].tolist()) == (x.tolist(), x.T.tolist())


# ------------------------------------------------------------------------------------------------------------- bad files


def write_dtype(path, dtype, count):
    """A file with a tensor "x" of so many bytes, said to be of a dtype, and a sound one."""
    header = {
        "x": {"dtype": dtype, "shape": [8], "data_offsets": [0, count]},
        "y": {"dtype": "F32", "shape": [1], "data_offsets": [count, count + 4]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(count + 4))


# All dtypes of the format, with their bits.
HELD = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8}
HELD |= {"U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8}
NOT_HELD = {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
NOT_HELD |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64}


@pytest.mark.parametrize("dtype", HELD)
def test_every_dtype_that_a_tensor_holds_is_read(dtype, tmp_path):
    write_dtype(tmp_path / "file", dtype, HELD[dtype])
    assert tt.load(tmp_path / "file")["x"].tolist() == [0] * 8


@pytest.mark.parametrize("dtype", NOT_HELD)
def test_a_dtype_that_no_tensor_holds_is_named(dtype, tmp_path):
    write_dtype(tmp_path / "file", dtype, NOT_HELD[dtype])
    message = refused(tmp_path / "file")
    assert f"the tensor 'x' has the dtype {dtype}," in message
    assert "float32" in message


def test_a_dtype_that_nobody_knows(tmp_path):
    write_dtype(tmp_path / "file", "F7", 7)
    refused(tmp_path / "file")


def refused(path):
    with pytest.raises(tt.FileError) as caught:
        tt.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_file(tmp_path):
    assert "does not exist" in refused(tmp_path / "nowhere")


def test_a_directory(tmp_path):
    refused(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 8, 20, -1, -100])
def test_a_truncated_file(length, tmp_path):
    tt.save({"x": tt.ones(100)}, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(content[:length])
    assert "not a whole safetensors file" in refused(tmp_path / "file")


@pytest.mark.parametrize("content", [b"hello" * 100, b"\x80\x04\x95" + b"\0" * 200, b"PK\x03\x04" + b"x" * 100, b"\xff" * 64])
def test_a_file_of_another_kind(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    assert "another format" in refused(tmp_path / "file")


def test_a_file_error_is_a_value_error():
    assert issubclass(tt.FileError, ValueError)


# ------------------------------------------------------------------------------------------------------- failed writing


def only_the_first(folder):
    """The folder holds one whole file, the first one, and nothing beside it."""
    assert [f.name for f in folder.iterdir()] == ["file"]
    assert tt.load(folder / "file")["x"].tolist() == [1, 2]


def test_a_full_disk_keeps_the_previous_file_and_leaves_nothing_behind(tmp_path):
    # A limit on the size of files stands in for the full disk: writing fails half way.
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")
    code = """
import resource, signal, sys
import tinytensor as tt
from tinytensor import backend
big = tt.zeros(1_000_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    tt.save({"x": big}, sys.argv[1])
except OSError as error:
    print("refused:", error)
"""
    pytest.importorskip("resource")
    root = Path(tt.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    arguments = [sys.executable, "-B", "-c", code, str(tmp_path / "file")]
    run = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout.startswith("refused:"), run.stderr
    only_the_first(tmp_path)


def test_a_failed_rename_keeps_the_previous_file(tmp_path, monkeypatch):
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        tt.save({"x": tt.zeros(2)}, tmp_path / "file")
    monkeypatch.undo()
    only_the_first(tmp_path)


def test_an_interrupt_keeps_the_previous_file(tmp_path):
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "file") as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt
    only_the_first(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: tt.nn.Linear(1, 1), r"model\.state_dict\(\), not a Linear"),
        (lambda: {"model": {"x": tt.ones(1)}}, "'model' is a dict"),
        (lambda: {"x": np.ones(1)}, r"'x' is a ndarray: .*tt\.tensor"),
    ],
    ids=["a module", "nested", "an array"],
)
def test_what_is_not_named_tensors_is_refused(content, says, tmp_path):
    with pytest.raises(TypeError, match=says):
        tt.save(content(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def together(work, count=4):
    """What ``work(0)``, ``work(1)``, ... return, each called in a thread of its own at the same time."""
    ready = threading.Barrier(count)

    def start(i):
        ready.wait()
        return work(i)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(start, range(count)))


def test_threads_write_to_one_path_at_once(tmp_path):
    def work(i):
        for _ in range(25):
            tt.save({"x": tt.full(1000, float(i))}, tmp_path / "file")
            back = tt.load(tmp_path / "file")["x"].tolist()
            assert back == [back[0]] * 1000  # one thread's, whole

    together(work)
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_one_thread_writes_to_a_path_twice_at_once(tmp_path):
    with atomic_write(tmp_path / "file") as first, atomic_write(tmp_path / "file") as second:
        first.write_text("first")
        second.write_text("second")
    assert (tmp_path / "file").read_text() == "first"  # which ended last
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OSError):
        tt.save({"x": tt.ones(1)}, tmp_path / "nowhere" / "file")


def test_atomic_write_replaces_the_file_at_the_end(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with atomic_write(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == target.parent  # on the same disk, so that renaming is one step
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]
