"""Texts from files and the network (here: file URLs and this machine), and the batches cut from them."""

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common import memory
from tinyformer.common.errors import SettingError, UserError
from tinyformer.data import reading
from tinyformer.data.batches import Rows, check_ids
from tinyformer.data.masking import MaskedBatches, Masking
from tinyformer.data.reading import TextSource, default_text, download, open_text, read_text, standard_library_text
from tinyformer.data.text import TextBatches
from tinyformer.decoding.generation import generate
from tinyformer.models.gpt import GPT
from tinytensor import parallel
from tinytensor.common.wording import counted

# ---------------------------------------------------------------------------------------------------------- read_text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve\n日本語 😀".encode(), "naïve\n日本語 😀"),
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"a lone \r stays\nin its line", "a lone \r stays\nin its line"),
        (b"on a Mac\rof 1999\r", "on a Mac\nof 1999\n"),
        (b"\xef\xbb\xbfmarked", "marked"),
    ],
)
def test_a_file(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert read_text(path) == text
    assert read_text(str(path)) == text


def test_a_folder_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.txt").write_bytes(b"\xef\xbb\xbfthird")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"\xff\x00")
    (tmp_path / ".hidden").write_text("no")
    assert read_text(tmp_path) == "first\nsecond\nthird"


def test_a_folder_inside_a_hidden_one_is_read(tmp_path: Path) -> None:
    # Only what is hidden below the folder that was asked for is left out.
    folder = tmp_path / ".notes"
    folder.mkdir()
    (folder / "a.txt").write_text("mine")
    assert read_text(folder) == "mine"


@pytest.mark.parametrize("content", ["", " \n\t\n"])
def test_an_empty_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r"a\.txt has no text"):
        read_text(path)


def test_an_empty_name_is_not_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_tiny_shakespeare", lambda: "to be")
    for read in (read_text, open_text, lambda path: TextSource(None, "x", "y").read_again("run", path)):
        with pytest.raises(UserError, match="the path is empty: pass --data"):
            read("")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_endless_files_are_rejected_immediately(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_special(kind, tmp_path, monkeypatch)
    with pytest.raises(UserError, match=f"{path.name} is a {kind}, not a regular file: pass --data a text file"):
        read_text(path)


def make_special(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something in the file system that is neither a file nor a folder."""
    path = folder / f"a {kind}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(folder)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    return path


@pytest.mark.timeout(30)
def test_special_files_in_a_folder_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("pipe", "device", "socket"):
        make_special(kind, tmp_path, monkeypatch)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "text").write_text("words")
    (tmp_path / "link").symlink_to("text")
    (tmp_path / ".hidden").symlink_to("nowhere")
    assert read_text(tmp_path) == "words\nwords"


def test_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "text").write_text("words")
    with pytest.raises(UserError, match="link is a link to nowhere, which does not exist"):
        read_text(tmp_path / "link")


def test_circular_links_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(OSError, match=r"Too many levels of symbolic links: .*a'"):
        read_text(tmp_path / "a")


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("words")
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):  # root may read every folder
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="closed"):
        read_text(tmp_path)


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(UserError, match=r"'a\\x00b' is not a valid path"):
        read_text("a\0b")


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")
    Path(path).write_text("words")
    assert read_text(tmp_path) == "words"
    with pytest.raises(UserError, match=r"\\udcff\.txt' is not UTF-8: rename the file"):
        open_text(path)  # whose name the run's settings could not hold


@pytest.mark.timeout(30)
def test_a_file_that_is_larger_than_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(10 * 10**12)  # a sparse file
    with pytest.raises(UserError, match=r"needs at least 30 TB of memory, but there are .*: pass --data a shorter one"):
        read_text(tmp_path / "large")
    for name in ("one", "two"):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text("words")
    monkeypatch.setattr(memory, "_WORTH_ASKING", 0)
    monkeypatch.setattr(memory, "host_memory", lambda: 29)
    with pytest.raises(UserError, match=r"texts needs at least 30 bytes of memory.*: pass --data a shorter one"):
        read_text(tmp_path / "texts")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no UTF-8 text files"):
        read_text(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt does not exist"):
        read_text(tmp_path / "a.txt")


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good" + "é".encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.txt is not UTF-8 text \(byte 4\)"):
        read_text(tmp_path / "a.txt")


def test_the_standard_librarys_sources() -> None:
    text = standard_library_text()
    assert "import" in text
    assert text.isascii()
    assert "\r\n" not in text
    assert 100_000 < len(text) <= 1_100_000
    assert standard_library_text() == text
    assert standard_library_text(limit=1000) == text[:1000]


# ---------------------------------------------------------------------------------------------------------- download


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test its own cache, never the user's."""
    monkeypatch.setenv("TINYFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def remote(tmp_path: Path) -> tuple[Path, str]:
    """A file to "download", and its checksum."""
    path = tmp_path / "remote.txt"
    path.write_bytes(b"a text from afar")
    return path, hashlib.sha256(b"a text from afar").hexdigest()


def test_download_once_then_from_the_cache(remote: tuple[Path, str], cache: Path) -> None:
    path, checksum = remote
    assert download(path.as_uri(), checksum) == b"a text from afar"
    assert [file.read_bytes() for file in cache.rglob("*") if file.is_file()] == [b"a text from afar"]
    path.unlink()  # from here on there is nothing to download
    assert download(path.as_uri(), checksum) == b"a text from afar"


def test_a_damaged_cache_is_downloaded_again(remote: tuple[Path, str], cache: Path) -> None:
    path, checksum = remote
    download(path.as_uri(), checksum)
    (kept,) = (file for file in cache.rglob("*") if file.is_file())
    kept.write_bytes(b"a text from af")
    assert download(path.as_uri(), checksum) == kept.read_bytes() == b"a text from afar"


def test_a_wrong_checksum_keeps_nothing(remote: tuple[Path, str], cache: Path) -> None:
    path, _ = remote
    with pytest.raises(UserError, match="has the wrong checksum") as caught:
        download(path.as_uri(), "0" * 64)
    assert path.as_uri() in str(caught.value)
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        download((tmp_path / "nothing").as_uri(), "0" * 64)


@pytest.fixture
def serve() -> Iterator[Callable[[int, dict[str, str], bytes], str]]:
    """Start a server on this machine that answers every request in one way; its address is returned."""
    servers = []

    def start(status: int, headers: dict[str, str], body: bytes) -> str:
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/input.txt"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore proxies: a test's server is on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.usefixtures("no_proxy")
def test_over_http(serve) -> None:
    url = serve(200, {"Content-Length": "4"}, b"text")
    assert download(url, hashlib.sha256(b"text").hexdigest()) == b"text"


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [(404, {}, b"not found"), (200, {"Content-Length": "1000"}, b"a connection that ends too soon")],
)
def test_a_failed_download_is_an_oserror(serve, cache: Path, status: int, headers: dict[str, str], body: bytes) -> None:
    url = serve(status, headers, body)
    with pytest.raises(OSError):
        download(url, hashlib.sha256(body).hexdigest())
    assert not cache.exists()


# ------------------------------------------------------------------------------------------------------ default_text


def test_default_text_is_downloaded(remote: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(reading, "TINY_SHAKESPEARE", remote[0].as_uri())
    monkeypatch.setattr(reading, "TINY_SHAKESPEARE_SHA256", remote[1])
    assert default_text() == ("a text from afar", "Tiny Shakespeare")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("problem", ["unreachable", "wrong file", "cut short"])
def test_default_text_falls_back_and_says_so_in_a_line(
    problem: str, remote: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys, serve
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(reading, "TINY_SHAKESPEARE", remote[0].as_uri())
    monkeypatch.setattr(reading, "TINY_SHAKESPEARE_SHA256", "0" * 64 if problem == "wrong file" else remote[1])
    if problem == "unreachable":
        remote[0].unlink()
    elif problem == "cut short":
        monkeypatch.setattr(reading, "TINY_SHAKESPEARE", serve(200, {"Content-Length": "1000"}, b"a text"))
    text, name = default_text()
    assert text == standard_library_text()
    assert name == reading.STANDARD_LIBRARY
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.startswith("Tiny Shakespeare could not be downloaded (")
    assert out.endswith("): training on Python's own sources instead.\n")


@pytest.mark.parametrize("problem", ["cache is a file", "disk is full", "no home"])
def test_a_text_that_cannot_be_kept_is_used_all_the_same(
    problem: str, remote: tuple[Path, str], cache: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(reading, "TINY_SHAKESPEARE", remote[0].as_uri())
    monkeypatch.setattr(reading, "TINY_SHAKESPEARE_SHA256", remote[1])
    if problem == "cache is a file":
        cache.write_text("in the way")
    elif problem == "no home":
        monkeypatch.delenv("TINYFORMER_CACHE")
        monkeypatch.setattr(reading, "user_cache", lambda name: None)
    else:

        def full(number: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
    assert default_text() == ("a text from afar", "Tiny Shakespeare")
    said = {
        "cache is a file": "Not a directory",
        "disk is full": "No space left on device",
        "no home": "there is no home folder",
    }
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Cannot save the download") and said[problem] in line and "TINYFORMER_CACHE" in line


def test_a_text_is_read_again_wherever_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some words", encoding="utf-8")
    text, source = open_text(str(path))
    assert text == "some words"
    assert source == TextSource(str(path), str(path), hashlib.sha256(b"some words").hexdigest())
    assert source.read_again("run") == text
    path.rename(tmp_path / "b.txt")
    assert source.read_again("run", str(tmp_path / "b.txt")) == text
    path.write_text("other words", encoding="utf-8")
    with pytest.raises(UserError, match=r"the text is not the one that run was trained on \(.*a\.txt\): --resume needs"):
        source.read_again("run")


def test_a_default_text_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that was Python's own sources is so even where Tiny Shakespeare can be had now.
    monkeypatch.setattr(reading, "_tiny_shakespeare", lambda: "to be")
    text, source = open_text(None)
    assert (text, source.path, source.name) == ("to be", None, "Tiny Shakespeare")
    assert source.read_again("run") == "to be"
    own = standard_library_text()
    assert TextSource(None, reading.STANDARD_LIBRARY, hashlib.sha256(own.encode()).hexdigest()).read_again("run") == own


# ---------------------------------------------------------------------------------------------------------- batches


def batches(n: int = 200, block_size: int = 8, batch_size: int = 4, **options: object) -> TextBatches:
    """Ids that are their own places in the text, so that a window shows where it was cut."""
    return TextBatches(np.arange(n), block_size, batch_size, **options)


def test_a_batch_is_windows_of_the_training_text_and_their_successors() -> None:
    some = batches()
    for _ in range(20):
        batch = some.sample()
        inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
        assert inputs.shape == targets.shape == (4, 8)
        assert batch.num_targets == 32
        np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(8))
        np.testing.assert_array_equal(targets, inputs + 1)
        assert targets.max() < 180  # never from the validation split


def test_every_window_can_be_drawn() -> None:
    # 19 training ids have 11 windows of 8 with a target more: the first and the last must be among them.
    some = batches(38, validation_fraction=0.5)
    assert len(some.training) == 19
    starts = {int(start) for _ in range(100) for start in some.sample().inputs.numpy()[:, 0]}
    assert starts == set(range(11))


# The last fraction is 10 %: 200 ids leave 20, so two windows of 8 and a tail of 3; 250 leave 25: three and no tail.
@pytest.mark.parametrize("n", [90, 100, 170, 180, 190, 200, 250, 251, 1000])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_every_validation_target_exactly_once_and_in_order(n: int, batch_size: int) -> None:
    some = batches(n)
    held_out = some.validation.numpy()
    assert held_out.tolist() == list(range(n - len(held_out), n))
    targets, count = [], 0
    for batch in some.validation_batches(batch_size):
        np.testing.assert_array_equal(batch.targets.numpy(), batch.inputs.numpy() + 1)
        assert batch.inputs.shape[0] <= batch_size
        assert 1 <= batch.inputs.shape[1] <= 8
        assert batch.num_targets == batch.targets.size
        targets += batch.targets.numpy().reshape(-1).tolist()
        count += batch.num_targets
    assert targets == held_out[1:].tolist()
    assert count == len(held_out) - 1


@pytest.mark.parametrize("context", [1, 5, 11])
def test_the_inputs_begin_with_what_came_before(context: int) -> None:
    some, plain = batches(context=context), batches()
    for _ in range(20):
        batch = some.sample()
        inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
        assert (inputs.shape, targets.shape) == ((4, context + 8), (4, 8))
        assert batch.num_targets == 32
        np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(context + 8))
        np.testing.assert_array_equal(targets, inputs[:, context:] + 1)
        assert targets.max() < 180  # never from the validation split
    # Validation has the same targets as without, and reads the end of the training text before them.
    pairs = list(zip(some.validation_batches(2), plain.validation_batches(2), strict=True))
    assert len(pairs) > 1
    for batch, without in pairs:
        np.testing.assert_array_equal(batch.targets.numpy(), without.targets.numpy())
        np.testing.assert_array_equal(batch.inputs.numpy()[:, context:], without.inputs.numpy())
        np.testing.assert_array_equal(batch.inputs.numpy()[:, 1:], batch.inputs.numpy()[:, :-1] + 1)
        assert batch.num_targets == without.num_targets
    assert pairs[0][0].inputs.numpy()[0, 0] == 180 - context


def test_every_window_with_what_came_before_can_be_drawn() -> None:
    some = batches(38, validation_fraction=0.5, context=3)
    starts = {int(start) for _ in range(100) for start in some.sample().inputs.numpy()[:, 0]}
    assert starts == set(range(8))


def test_a_text_that_is_too_short_for_what_came_before() -> None:
    message = "tokens? for windows of 20: use at least 211, or a smaller block_size or context"
    with pytest.raises(SettingError, match=message) as error:
        batches(context=12)
    assert error.value.names == ("block_size", "context")
    assert batches(211, context=12).sample().inputs.shape == (4, 20)


@pytest.mark.parametrize("context", [0, 3])
def test_the_test_split_is_the_beginning_and_is_not_trained_on(context: int) -> None:
    some = batches(200, test_fraction=0.3, context=context)  # 0 to 59 test, 60 to 179 train, 180 to 199 validate
    np.testing.assert_array_equal(some.test.numpy(), np.arange(60))
    np.testing.assert_array_equal(some.training.numpy(), np.arange(60, 180))
    np.testing.assert_array_equal(some.validation.numpy(), np.arange(180, 200))
    assert min(int(some.sample().inputs.numpy().min()) for _ in range(300)) == 60
    testing = some.with_test_split()
    drawn = list(testing.validation_batches(2))
    np.testing.assert_array_equal(np.concatenate([b.targets.numpy().ravel() for b in drawn]), np.arange(1 + context, 60))
    assert int(drawn[0].inputs.numpy()[0, 0]) == 0
    # The batches themselves stay as they were, and so does the order in which they draw.
    np.testing.assert_array_equal(some.validation.numpy(), np.arange(180, 200))
    assert testing.get_state() == some.get_state()


def test_batches_without_a_test_split() -> None:
    assert len(batches(200).test) == 0
    np.testing.assert_array_equal(batches(200).training.numpy(), np.arange(180))


@pytest.mark.parametrize("fraction", [-0.1, 0.9, 1.0])
def test_test_fractions_that_cannot_be(fraction: float) -> None:
    with pytest.raises(SettingError, match=r"test_fraction must be at least 0 and below 0\.9 \(1 - validation_fraction\)"):
        batches(200, test_fraction=fraction)


def test_a_text_that_is_too_short_for_a_test_split() -> None:
    with pytest.raises(SettingError, match="use at least 181, or a smaller block_size or test_fraction"):
        batches(179, test_fraction=0.05)
    assert len(batches(181, test_fraction=0.05).test) == 9


def test_both_splits_together_are_the_text() -> None:
    some = batches(123, validation_fraction=0.3)
    assert some.training.tolist() + some.validation.tolist() == list(range(123))
    assert len(some.validation) == 37


def test_seeds() -> None:
    def drawn(seed: int) -> list[list[int]]:
        some = batches(seed=seed)
        return [some.sample().inputs.numpy()[:, 0].tolist() for _ in range(5)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_state_goes_through_json_and_resumes_exactly() -> None:
    some = batches(seed=1)
    some.sample()
    state = json.loads(json.dumps(some.get_state()))
    expected = [some.sample().inputs.tolist() for _ in range(3)]
    other = batches(seed=99)
    other.set_state(state)
    assert [other.sample().inputs.tolist() for _ in range(3)] == expected


def test_validation_does_not_disturb_the_choice_of_windows() -> None:
    one, two = batches(seed=1), batches(seed=1)
    list(two.validation_batches())
    assert one.sample().inputs.tolist() == two.sample().inputs.tolist()


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("block_size", [1, 8, 64])
def test_a_short_text_is_reported_with_the_required_length(block_size: int, fraction: float) -> None:
    with pytest.raises(UserError, match=f"tokens? for windows of {block_size}: use at least") as caught:
        batches(block_size, block_size, validation_fraction=fraction)
    assert f"has only {counted(block_size, 'token')}" in str(caught.value)
    need = int(str(caught.value).split("at least ")[1].split(",")[0])
    # What it says is enough, and not more than twice what is.
    some = batches(need, block_size, validation_fraction=fraction)
    assert list(some.validation_batches())
    some.sample()
    with pytest.raises(UserError):
        batches(need // 2 - 1, block_size, validation_fraction=fraction)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.0}, "batch_size must be an integer, got 2.0"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        ({"batch_size": 10**30}, r"a batch of this batch_size needs at least 10\^32 bytes .*: choose a smaller one"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"block_size": 10**30}, f"tokens? for windows of {10**30}: use at least 9,999,999,999,999,999"),
        ({"block_size": 10**400}, "or a smaller block_size"),
        ({"context": -1}, "context must be at least 0, got -1"),
        ({"validation_fraction": 0.0}, "validation_fraction must be above 0 and below 1, got 0.0"),
        ({"validation_fraction": 1.0}, "validation_fraction must be above 0 and below 1, got 1.0"),
    ],
)
def test_settings_that_make_no_batches(options: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        batches(**options)
    assert caught.value.names == tuple(options)


# ------------------------------------------------------------------------------------------------------------- shards


@dataclass
class Named(Rows):
    """A batch of two tensors with different axes, and a field that is no tensor."""

    first: tt.Tensor
    second: tt.Tensor
    num_targets: int
    name: str


@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 12, 100])
def test_rows_are_cut_evenly_and_in_order(rows: int, parts: int) -> None:
    whole = Named(tt.arange(rows), tt.arange(rows * 6).reshape(rows, 2, 3), 42, "a")
    shards = whole.split(parts)
    assert len(shards) == min(rows, parts)
    assert {(type(shard), shard.num_targets, shard.name) for shard in shards} == {(Named, 42, "a")}
    for name in ("first", "second"):
        pieces = [getattr(shard, name).numpy() for shard in shards]
        np.testing.assert_array_equal(np.concatenate(pieces), getattr(whole, name).numpy())
        sizes = [len(piece) for piece in pieces]
        assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_the_shards_of_rows_have_the_gradient_of_the_whole(parts: int) -> None:
    rng = np.random.default_rng(0)
    whole = Named(tt.tensor(rng.standard_normal((4, 3))), tt.tensor(rng.standard_normal((4, 2))), 8, "")
    plain, shared = [tt.tensor(np.ones((3, 2)), requires_grad=True) for _ in range(2)]

    def loss(weight: tt.Tensor, batch: Named) -> tt.Tensor:
        return tt.square(tt.tanh(batch.first @ weight) - batch.second).sum() / batch.num_targets

    expected = loss(plain, whole)
    expected.backward()
    assert parallel.backward(partial(loss, shared), whole.split(parts)).item() == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(shared.grad.numpy(), plain.grad.numpy(), rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------- ids that are no tokens


@pytest.mark.parametrize(("ids", "wrong"), [([0, 3, 11, 2], 11), ([[0, -1]], -1), (np.array([10, 12]), 12)])
def test_an_id_outside_of_the_vocabulary(ids: object, wrong: int) -> None:
    with pytest.raises(UserError, match=f"id {wrong} is out of range: the vocabulary's ids are 0 to 10"):
        check_ids(ids, 11)
    check_ids(ids, 13) if wrong > 0 else check_ids([], 11)


@pytest.mark.parametrize(("ids", "kind"), [([0, 1.5, 1], "float64"), (np.ones(3, bool), "bool"), (["1"], "<U1")])
def test_ids_that_are_no_integers(ids: object, kind: str) -> None:
    with pytest.raises(UserError, match=f"token ids must be integers, got {kind}"):
        check_ids(ids, 11)


def test_ids_are_checked_where_a_text_is_loaded_or_continued(make_gpt: Callable[..., GPT]) -> None:
    with pytest.raises(UserError, match="id 99 is out of range"):
        TextBatches(np.arange(100), 8, 4, vocab_size=99)
    assert TextBatches(np.arange(100), 8, 4, vocab_size=100).sample().num_targets == 32
    with pytest.raises(UserError, match="id 9 is out of range"):
        MaskedBatches(np.arange(100) % 10, Masking(9, 3, [0]), 1, 2, 5, 2)
    with pytest.raises(UserError, match="id 11 is out of range"):
        next(generate(make_gpt(), [1, 11], 3))


def test_a_file_that_opens_but_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("some text")

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("tinyformer.common.files.open_file", lambda path: Failing())
    with pytest.raises(OSError, match="Input/output error") as caught:
        read_text(tmp_path / "text.txt")
    assert caught.value.filename == str(tmp_path / "text.txt")
