"""Saving and loading: what comes back, and what happens if a file is damaged."""

import errno
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.device import backend
from tinytensor.io import load_mapped, load_with_metadata


def in_a_process(code, *paths):
    root = Path(tt.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-B", "-c", code, *map(str, paths)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


DTYPES = ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype, tmp_path):
    for shape in [(2, 3), (), (0,), (3, 0, 2), (1,)]:
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
    # The file is read without the package: eight bytes with the header's length, the header in JSON, the values.
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file", {"a": "b"})
    content = (tmp_path / "file").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    assert (metadata.pop("a"), list(metadata)) == ("b", ["tinytensor.sha256"])
    assert (header["x"]["dtype"], header["x"]["shape"]) == ("F32", [2])
    start, end = header["x"]["data_offsets"]
    assert struct.unpack("<2f", content[8 + length :][start:end]) == (1, 2)


def test_the_package_safetensors_and_this_library_read_each_others_files(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    values = {dtype: np.random.default_rng(0).integers(0, 2, (3, 2)).astype(dtype) for dtype in DTYPES}
    tt.save({name: tt.tensor(array) for name, array in values.items()}, tmp_path / "ours", {"a": "ö"})
    package.save_file(values, tmp_path / "theirs", {"a": "ö"})
    theirs, metadata = load_with_metadata(tmp_path / "theirs")
    assert metadata == {"a": "ö"}
    for name, array in values.items():
        for back in (package.load_file(tmp_path / "ours")[name], theirs[name].numpy()):
            assert back.dtype == array.dtype
            np.testing.assert_array_equal(back, array)


def test_each_tensor_begins_at_a_multiple_of_its_items_size(tmp_path):
    # Otherwise programs that map the file into memory would read the values slowly, or not at all.
    tt.save({"a": tt.tensor([True]), "b": tt.ones(3), "c": tt.tensor(np.ones(1))}, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert [header[name]["data_offsets"][0] for name in "cba"] == [0, 8, 20]


# -------------------------------------------------------------------------------------------------------------- bfloat16


def write_bfloat16(path, halves, shape):
    """A file with a bfloat16 tensor between two others. Its values are the upper halves of float32 numbers."""
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
    """A file with a tensor "x" of this number of bytes and this dtype, and with a valid tensor."""
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


def test_an_unknown_dtype_is_rejected(tmp_path):
    write_dtype(tmp_path / "file", "F7", 7)
    refused(tmp_path / "file")


def refused(path):
    """The message of the FileError, which is the only error that may be raised."""
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


def write_header(path, header, values=b""):
    """A file with this header, as an object for JSON or as bytes, and these values."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)


def entry(*offsets, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


ABSURD = {
    "nested lists": (b"[" * 100_000, b""),
    "nested objects": (b'{"a":' * 100_000, b""),
    "nested metadata": (b'{"__metadata__":' + b'{"a":' * 100_000, b""),
    "a list": ([], b""),
    "not UTF-8": (b'{"\xff":1}', b""),
    "a tensor that is a number": ({"x": 1}, b""),
    "a tensor without a shape": ({"x": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)),
    "a dtype that is a list": ({"x": entry(0, 4, dtype=["F32"])}, bytes(4)),
    "a negative shape": ({"x": entry(0, 4, shape=(-1, -1))}, bytes(4)),
    "a fractional shape": ({"x": entry(0, 4, shape=(1.0,))}, bytes(4)),
    "a true shape": ({"x": entry(0, 4, shape=(True,))}, bytes(4)),
    "an infinite shape": ({"x": entry(0, 4, shape=(float("inf"),))}, bytes(4)),
    "a huge shape": ({"x": entry(0, 4, shape=(1 << 62, 1 << 62))}, bytes(4)),
    "a shape that is no number of Python's": (b'{"x":{"dtype":"F32","shape":[' + b"9" * 5000 + b"]}}", b""),
    "a huge shape of nothing": ({"x": entry(0, 0, shape=(0, 1 << 62, 1 << 62))}, b""),
    "too many axes": ({"x": entry(0, 4, shape=[1] * 1000)}, bytes(4)),
    "three offsets": ({"x": entry(0, 4, 8)}, bytes(4)),
    "an end before its beginning": ({"x": entry(4, 0)}, bytes(4)),
    "overlapping": ({"x": entry(0, 8, shape=(2,)), "y": entry(4, 8)}, bytes(8)),
    "the same place": ({"x": entry(0, 4), "y": entry(0, 4)}, bytes(4)),
    "a hole": ({"x": entry(0, 4), "y": entry(8, 12)}, bytes(12)),
    "more values than tensors": ({"x": entry(0, 4)}, bytes(5)),
    "fewer values than tensors": ({"x": entry(0, 4)}, bytes(3)),
    "a name twice": (b'{"x":%b,"x":%b}' % ((json.dumps(entry(0, 4)).encode(),) * 2), bytes(4)),
    "metadata that is no text": ({"__metadata__": {"a": 1}}, b""),
    "metadata that is a list": ({"__metadata__": ["a"]}, b""),
    "half a character": ({"\ud800": entry(0, 4)}, bytes(4)),
    "a boolean that is 2": ({"x": entry(0, 1, dtype="BOOL")}, b"\2"),
}


@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_header(what, tmp_path):
    header, values = ABSURD[what]
    write_header(tmp_path / "file", header, values)
    assert "not a whole safetensors file" in refused(tmp_path / "file")


def test_a_header_that_is_longer_than_the_format_allows(tmp_path):
    with open(tmp_path / "file", "wb") as file:  # a sparse file
        file.write(struct.pack("<Q", 10**12))
        file.truncate(2 * 10**12)
    assert "does not fit in memory" in refused(tmp_path / "file")
    (tmp_path / "file").write_bytes(struct.pack("<Q", 10**12) + bytes(100))
    assert "a header of 1,000,000,000,000 bytes" in refused(tmp_path / "file")


def test_a_message_stays_short_whatever_the_file_says(tmp_path):
    write_header(tmp_path / "file", {"x\n" * 10_000: entry(0, 4, dtype="F8" * 10_000)}, bytes(4))
    assert len(refused(tmp_path / "file")) < 600
    write_header(tmp_path / "file", b"{" + b'"x' * 10_000)
    assert len(refused(tmp_path / "file")) < 600


def test_an_empty_tensor_has_no_bytes_and_stands_anywhere(tmp_path):
    write_header(tmp_path / "file", {"a": entry(0, 4), "b": entry(4, 4, shape=(0, 1 << 40)), "c": entry(4, 8)}, bytes(8))
    assert {name: t.shape for name, t in tt.load(tmp_path / "file").items()} == {"a": (1,), "b": (0, 1 << 40), "c": (1,)}


def test_a_file_that_is_larger_than_memory(tmp_path):
    count = 1 << 43
    header = json.dumps({"x": entry(0, count, shape=(count,), dtype="U8")}).encode()
    with open(tmp_path / "file", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        try:
            file.truncate(8 + len(header) + count)
        except OSError:
            pytest.skip("this file system has no sparse files of 8 TiB")
    assert "does not fit in memory" in refused(tmp_path / "file")


# ------------------------------------------------------------------------------------------------------------- the checksum


def test_a_flipped_bit_of_every_byte_is_found(tmp_path):
    path = tmp_path / "file"
    tt.save({"x": tt.tensor([1.5, -2.0]), "y": tt.tensor([True])}, path, {"state": "{}"})
    expected = {"x": [1.5, -2.0], "y": [True]}
    content = path.read_bytes()
    key = content.index(b"tinytensor.sha256")
    unnoticed = []
    rng = np.random.default_rng(0)
    for place in range(len(content)):
        for bit in range(8) if place < 8 else [int(rng.integers(8))]:
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            try:
                back = tt.load(path)
            except tt.FileError:
                continue
            assert {name: tensor.tolist() for name, tensor in back.items()} == expected
            unnoticed.append(place)
    # If only the checksum's name is damaged, the data are right.
    assert set(unnoticed) <= set(range(key, key + len("tinytensor.sha256")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_flipped_bit_is_reported(dtype, tmp_path):
    if dtype == "bfloat16" and backend.bfloat16 is None:
        pytest.skip("NumPy has no bfloat16")
    tt.save({"x": tt.ones(10).astype(dtype)}, tmp_path / "file")
    content = bytearray((tmp_path / "file").read_bytes())
    content[-3] ^= 1
    (tmp_path / "file").write_bytes(content)
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'} is damaged: its checksum is not that of its content"


@pytest.mark.parametrize("digits", ["0" * 64, "", "g" * 64, "A" * 64])
def test_a_checksum_that_is_none(digits, tmp_path):
    write_header(tmp_path / "file", {"__metadata__": {"tinytensor.sha256": digits}, "x": entry(0, 4)}, bytes(4))
    assert "its checksum is not that" in refused(tmp_path / "file")


def test_the_checksum_is_that_of_the_file_with_zeros_for_it(tmp_path):
    values = np.random.default_rng(0).standard_normal(700_000)  # more than one of the pieces in which a file is read
    tt.save({"x": tt.tensor(values), "y": tt.ones(3)}, tmp_path / "file", {"a": '"tinytensor.sha256":"' + "1" * 64 + '"'})
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    digits = json.loads(content[8 : 8 + length])["__metadata__"]["tinytensor.sha256"]
    assert hashlib.sha256(content.replace(digits.encode(), b"0" * 64)).hexdigest() == digits
    tensors, metadata = load_with_metadata(tmp_path / "file")
    np.testing.assert_array_equal(tensors["x"].numpy(), values)
    assert list(metadata) == ["a"]


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}])
def test_metadata_that_is_no_text_is_not_written(metadata, tmp_path):
    with pytest.raises(TypeError, match="metadata must be text by name"):
        tt.save({"x": tt.ones(1)}, tmp_path / "file", metadata)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ what is no file, or not for us


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device", "a socket"])
def test_special_files_are_rejected_immediately(kind, tmp_path, monkeypatch):
    path = tmp_path / "thing"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("thing")
        listening.close()
    assert f"{path} is {kind}, not a safetensors file" in refused(path)


def test_a_name_that_no_file_can_have():
    with pytest.raises(tt.FileError, match=r"'a\\x00b' cannot be the name of a file"):
        tt.load("a\0b")


def test_links_that_lead_around(tmp_path):
    (tmp_path / "file").symlink_to(tmp_path / "file")
    assert "cannot be read: Too many levels of symbolic links" in refused(tmp_path / "file")


def test_a_permission_error_is_reported(tmp_path, monkeypatch):
    tt.save({"x": tt.ones(1)}, tmp_path / "file")

    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)  # root may read every file
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'} cannot be read: Permission denied"


# ------------------------------------------------------------------------------------------------------- failed writing


def only_the_first(folder):
    """The folder holds one complete file, the first one, and nothing else."""
    assert [f.name for f in folder.iterdir()] == ["file"]
    assert tt.load(folder / "file")["x"].tolist() == [1, 2]


def test_a_full_disk_keeps_the_previous_file_and_leaves_nothing_behind(tmp_path):
    # A limit on the size of files acts like a full disk: writing fails in the middle.
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")
    code = """
import resource, signal, sys
import tinytensor as tt
from tinytensor.device import backend
big = tt.zeros(1_000_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    tt.save({"x": big}, sys.argv[1])
except OSError as error:
    print("refused:", error.filename, error.strerror)
"""
    pytest.importorskip("resource")
    run = in_a_process(code, tmp_path / "file")
    assert run.stdout == f"refused: {tmp_path / 'file'} File too large\n", run.stderr
    only_the_first(tmp_path)


def test_a_failed_rename_keeps_the_previous_file(tmp_path, monkeypatch):
    tt.save({"x": tt.tensor([1.0, 2.0])}, tmp_path / "file")

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        tt.save({"x": tt.zeros(2)}, tmp_path / "file")
    monkeypatch.undo()
    only_the_first(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: tt.nn.Linear(1, 1), r"model\.state_dict\(\), not a Linear"),
        (lambda: {"model": {"x": tt.ones(1)}}, "'model' is a dict"),
        (lambda: {"x": np.ones(1)}, r"'x' is an ndarray: .*tt\.tensor"),
    ],
    ids=["a module", "nested", "an array"],
)
def test_only_named_tensors_can_be_saved(content, says, tmp_path):
    with pytest.raises(TypeError, match=says):
        tt.save(content(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def together(work, count=4):
    """The results of ``work(0)``, ``work(1)``, ..., which run in parallel threads."""
    ready = threading.Barrier(count)

    def start(i):
        ready.wait()
        return work(i)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(start, range(count)))


def test_threads_write_to_one_path_in_parallel(tmp_path):
    def work(i):
        for _ in range(25):
            tt.save({"x": tt.full(1000, float(i))}, tmp_path / "file")
            back = tt.load(tmp_path / "file")["x"].tolist()
            assert back == [back[0]] * 1000  # the complete values of one thread

    together(work)
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OSError):
        tt.save({"x": tt.ones(1)}, tmp_path / "nowhere" / "file")


# ---------------------------------------------------------------------------------- what is written is read, or not written

two = np.ones(2, "float32")
UNWRITABLE = {
    "the checksum's name": (
        {"x": two},
        {"tinytensor.sha256": "0" * 64},
        ValueError,
        "the metadata cannot have 'tinytensor.sha256'",
    ),
    "half a surrogate pair": ({"a\ud800": two}, None, ValueError, r"save: 'a\\ud800' has half of a surrogate pair"),
    "a key of metadata": ({"x": two}, {"\udfff": ""}, ValueError, "half of a surrogate pair"),
    "a value of metadata": ({"x": two}, {"key": "\udfff"}, ValueError, "half of a surrogate pair"),
    "long double": (
        {"x": two.astype(np.longdouble)},
        None,
        TypeError,
        r"save: 'x' is of \w+, which a file cannot have: convert",
    ),
    "complex": ({"x": two.astype(complex)}, None, TypeError, "save: 'x' is of complex128"),
    "objects": ({"x": two.astype(object)}, None, TypeError, "save: 'x' is of object"),
    "metadata in a list": ({"x": two}, [("a", "b")], TypeError, "metadata must be text by name, got a list"),
    "long metadata": ({"x": two}, {"a": "b" * 100_000_000}, ValueError, "names and metadata of 100,000,.* bytes are too long"),
}


@pytest.mark.needs("numpy")
@pytest.mark.parametrize(("arrays", "metadata", "kind", "says"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_what_could_not_be_read_is_not_written(arrays, metadata, kind, says, tmp_path):
    tensors = {name: tt.Tensor._wrap(array) for name, array in arrays.items()}
    with pytest.raises(kind, match=says):
        tt.save(tensors, tmp_path / "file", metadata)
    assert list(tmp_path.iterdir()) == []


def test_strange_names_and_metadata(tmp_path):
    names = [
        "",
        "tinytensor.sha256",
        "0" * 64,
        'x","tinytensor.sha256":"' + "a" * 64,
        "\0\n",
        "\U0001f600\u2028",
        "x" * 100_000,
    ]
    metadata = {name: name[::-1] for name in [*names, "__metadata__", "format"] if name != "tinytensor.sha256"}
    tt.save({name: tt.ones(i) for i, name in enumerate(names)}, tmp_path / "file", metadata)
    found, read = load_with_metadata(tmp_path / "file")
    assert {name: x.shape for name, x in found.items()} == {name: (i,) for i, name in enumerate(names)}
    assert read == metadata


@pytest.mark.needs("numpy")
def test_arrays_of_every_layout(tmp_path):
    x = np.arange(24.0).reshape(2, 3, 4)
    arrays = {
        f"{order}{kind}": np.arange(3).astype(order + kind) for order in "<>" for kind in ("f2", "f4", "f8", "i2", "u4", "i8")
    }
    arrays |= {"reverse": x[:, ::-1, ::-2], "transposed": x.T, "repeated": np.broadcast_to(x[0, 0], (5, 4)), "empty": x[:, 3:]}
    arrays |= {"number": np.array(2.0), "booleans of other bytes": np.array([2, 0, 255], np.uint8).view(bool)}
    tt.save({name: tt.Tensor._wrap(array) for name, array in arrays.items()}, tmp_path / "file")
    for read in (lambda path: {name: t.numpy() for name, t in tt.load(path).items()}, load_mapped):
        found = read(tmp_path / "file")
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found[name], np.array(array.tolist(), array.dtype).reshape(array.shape))


@pytest.mark.parametrize("path", ["", ".", "a\0b", "a\ud800"])
def test_names_that_no_file_can_have(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for act in (lambda: tt.save({"x": tt.ones(1)}, path), lambda: tt.load(path), lambda: load_mapped(path)):
        with pytest.raises(tt.FileError, match=r"^'.*' cannot be the name of a file$"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name(tmp_path):
    path = tmp_path / ("x" * 255)
    tt.save({"x": tt.ones(1)}, path)
    assert list(tmp_path.iterdir()) == [path]
    assert tt.load(path)["x"].tolist() == [1.0]
