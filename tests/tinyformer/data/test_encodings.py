"""Files that are not UTF-8: the command in the message converts this very file."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.data.pairs import read_lines
from tinyformer.data.reading import read_text

RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему.\n"
CHINESE = "天地玄黄，宇宙洪荒。我们的生活越来越好，这是大家都知道的事情。他们在学校里学习中文。\n"
TRADITIONAL = "天地玄黃，宇宙洪荒。我們的生活越來越好，這是大家都知道的事情。他們在學校裡學習中文。\n"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n"
KOREAN = "나라의 말이 중국과 달라 문자와 서로 통하지 아니하므로\n"
GREEK = "Άνδρα μοι έννεπε, Μούσα, πολύτροπον, ος μάλα πολλά\n"
TEXTS = [
    ("Ein schöner Frühling, naïve Leute im Café.\n", "latin-1", "LATIN1"),
    ("“Quoted” – with an é and a €\n", "cp1252", "CP1252"),
    ("bytes \x81 that cp1252 lacks: é\n", "latin-1", "LATIN1"),
    ("wörter und Worte\n", "utf-16", "UTF-16"),
    ("\ufeffwörter und Worte\n", "utf-16-be", "UTF-16"),
    ("words and wörter\n", "utf-16-le", "UTF-16LE"),
    ("only ASCII\n", "utf-16-be", "UTF-16BE"),
    ("wörter\n", "utf-32", "UTF-32"),
    (RUSSIAN, "cp1251", "CP1251"),
    (RUSSIAN, "koi8-r", "KOI8-R"),
    (RUSSIAN, "cp866", "CP866"),
    (CHINESE, "gb18030", "GB18030"),
    (TRADITIONAL, "big5", "BIG5"),
    (JAPANESE, "cp932", "CP932"),
    (JAPANESE, "euc-jp", "EUC-JP"),
    (KOREAN, "cp949", "CP949"),
    (GREEK, "iso8859-7", "ISO-8859-7"),
]


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_text(path)
    return str(caught.value)


@pytest.mark.skipif(not shutil.which("iconv"), reason="there is no iconv")
@pytest.mark.parametrize(("text", "codec", "name"), TEXTS)
def test_the_command_makes_the_file_readable(text: str, codec: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "my notes.txt"
    path.write_bytes(text.encode(codec))
    message, _, command = refusal(path).partition(": iconv ")
    assert "is not UTF-8 text (byte " in message and f"it seems to be {name}, so convert it" in message
    subprocess.run(f"iconv {command}", shell=True, check=True)
    assert read_text(tmp_path / "my notes.utf8.txt") == text.removeprefix("\ufeff")


@pytest.mark.skipif(not shutil.which("iconv"), reason="there is no iconv")
def test_a_few_damaged_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((RUSSIAN * 3).encode() + b"\xff cut \xd0")
    message, _, command = refusal(path).partition(": iconv ")
    assert "damaged" in message
    assert subprocess.run(f"iconv {command}", shell=True, check=False).returncode in (0, 1)  # 1: it did leave some out
    assert read_text(tmp_path / "a.utf8.txt") == RUSSIAN * 3 + " cut "


@pytest.mark.skipif(not shutil.which("iconv"), reason="there is no iconv")
def test_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "train.de.gz"
    path.write_bytes(gzip.compress("schön\n".encode("latin-1")))
    with pytest.raises(UserError, match="LATIN1") as caught:
        read_lines(path)
    subprocess.run("gunzip" + str(caught.value).partition(": gunzip")[2], shell=True, check=True)
    assert read_lines(tmp_path / "train.utf8.de") == ["schön"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "it is a PNG picture, not text"),
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "it is a PDF document, not text"),
        (gzip.compress(b"words", mtime=0), "it is compressed with gzip: gunzip "),
        (bytes(range(256)), "it does not seem to be text at all"),
    ],
)
def test_not_a_valid_text(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    assert kind in refusal(path) and "iconv" not in refusal(path)
