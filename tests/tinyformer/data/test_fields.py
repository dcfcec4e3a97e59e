"""Records: one field of JSON Lines, JSON, CSV and TSV is the text, or an error lists the fields."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.data import fields
from tinyformer.data.reading import open_text, read_text

RECORDS = [
    {"id": 1, "text": 'one, "two"\nthree'},
    {"id": 2, "text": "naïve"},
    {"id": 3, "text": None},
    {"id": 4, "text": "last"},
]
TEXT = 'one, "two"\nthree\nnaïve\nlast'
FILES = {
    "a.jsonl": "\n".join(map(json.dumps, RECORDS)) + "\n\n",
    "a.ndjson": "\ufeff" + "\r\n".join(map(json.dumps, RECORDS)),
    "a.json": json.dumps(RECORDS, indent=1),
    "a.csv": 'id,text\r\n1,"one, ""two""\nthree"\r\n\r\n2,naïve\r\n3,\r\n4,last\r\n',
    "b.CSV": 'id;text\n1;"one, ""two""\nthree"\n2;naïve\n4;last',
    "lines.json": "\n".join(map(json.dumps, RECORDS)),
    "excel.csv": 'sep=;\nid;text\n1;"one, ""two""\nthree"\n2;naïve\n4;last',
    "a.tsv": 'id\ttext\n1\t"one, ""two""\nthree"\n2\tnaïve\n4\tlast',
}


@pytest.mark.parametrize("name", FILES)
def test_a_field(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8", newline="")
    assert read_text(path, field="text") == TEXT
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ('text\tlabel\n"Hello\tA\nHe said yes"\tB\n', [(2, ['"Hello', "A"]), (3, ['He said yes"', "B"])]),
        ('text\tlabel\n"Yes"\tA\n"Yes" he said\tB\n', [(2, ["Yes", "A"]), (3, ['"Yes" he said', "B"])]),
        ('text\tlabel\n"two\n\nlines"\tA\nx\ty\n', [(4, ["two\n\nlines", "A"]), (5, ["x", "y"])]),
        ('id\ttext\tnote\n1\t"two\nlines"\t"and\n""two"""\n', [(4, ["1", "two\nlines", 'and\n"two"'])]),
        ('text\tlabel\n"a\ttab"\tA\n', [(2, ["a\ttab", "A"])]),
        ('text\n"Hello\nHe said yes"\n', [(2, ['"Hello']), (3, ['He said yes"'])]),
    ],
)
def test_a_quotation_mark_between_tabs_swallows_no_line(table: str, rows: list[tuple[int, list[str]]]) -> None:
    assert list(fields._rows("a.tsv", table))[1:] == rows


def test_a_column_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("0,first\n4,second\n", encoding="utf-8")
    assert read_text(path, field="2") == "first\nsecond"


@pytest.mark.parametrize("name", FILES)
def test_without_a_field_it_is_learned_as_written_and_a_line_says_so(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8", newline="")
    assert read_text(path) == FILES[name].replace("\r\n", "\n").removeprefix("\ufeff")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{path} is ") and line.endswith("To read only one field: id, text")


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", '{"text": 1}'), ("a.csv", "no columns"), ("a.json", "{"), ("a.jsonl", '"s"')]
)
def test_no_notice_for_what_has_no_fields(name: str, content: str, tmp_path: Path, capsys) -> None:
    (tmp_path / name).write_text(content)
    assert read_text(tmp_path / name) == content
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "content", "field", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": "y}\n', "text", r"a.jsonl, line 2: invalid JSON \(Unterminated string"),
        ("a.jsonl", '{"body": "y"}\n{"body": "z"}', "text", "a.jsonl has no text in text: choose another field .body."),
        ("a.jsonl", '{"text": "x"}\n{"text": 7}', "text", "a.jsonl, line 2: text must be a string, got 7"),
        ("a.jsonl", '"x"', "text", 'a.jsonl, line 1: expected an object, got "x"'),
        ("a.jsonl", '{"text": "x"}\n{"text": "y\\ud83d"}', "text", r"a.jsonl, line 2: text contains .ud83d, half of a"),
        ("a.jsonl", "[" * 100_000, "text", "a.jsonl, line 1: the JSON is nested too deeply"),
        ("a.json", '[{"text": "x"},\n{"text": }]', "text", "a.json, line 2: invalid JSON"),
        ("a.json", '[{"text": "x"}, {"text": ["y"]}]', "text", r'a.json, record 2: text must be a string, got \["y"\]'),
        ("a.csv", "id,text\n1,x\n2\n", "text", "a.csv, line 3: expected 2 columns, as on line 1, got 1"),
        ("a.csv", 'id,text\n1,"x\n', "text", "a.csv, line 2: invalid table"),
        ("a.csv", "id,text\n1,x\n", "body", "a.csv, line 1: no column body: choose one of id, text"),
        ("a.csv", "text,text\n1,x\n", "text", "a.csv has 2 columns named text"),
        ("a.csv", "id,text\n1,\n", "text", "a.csv has no text in text: choose another field .id."),
        ("a.txt", "words", "text", "a.txt has no fields .only these files do: .jsonl, .*.: read it without a field"),
    ],
)
def test_errors_name_the_file_and_the_line(name: str, content: str, field: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_text(tmp_path / name, field=field)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_records_without_the_field_are_left_out_and_counted(name: str, tmp_path: Path, capsys) -> None:
    records = ['{"text": "x"}', '{"body": "y"}', '{"text": null}', '{"text": " "}', '{"text": "z"}']
    path = tmp_path / name
    path.write_text("\n".join(records) if name == "a.jsonl" else f"[{', '.join(records)}]")
    assert read_text(path, field="text") == "x\nz"
    assert capsys.readouterr() == ("", f"{path}: left out 3 records without text in text\n")


def test_a_folder(tmp_path: Path, capsys) -> None:
    for name in ("a.jsonl", "a.csv"):
        (tmp_path / name).write_text(FILES[name], encoding="utf-8", newline="")
    (tmp_path / "README").write_text("about the data")
    assert read_text(tmp_path, field="text") == f"{TEXT}\n{TEXT}"
    assert capsys.readouterr().out == f"{tmp_path}: left out 1 file without fields\n"
    assert "about the data" in read_text(tmp_path)
    assert capsys.readouterr().out.count("To read only one field: id, text") == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("words")
    with pytest.raises(UserError, match=r"has no \.jsonl, \.json, \.csv or \.tsv: leave out --field"):
        read_text(tmp_path / "other", field="text")


def test_a_run_keeps_its_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(FILES["a.jsonl"])
    text, source = open_text(str(path), field="text")
    assert source.read_again("run") == source.read_again("run", str(path), "text") == text == TEXT
    with pytest.raises(UserError, match=r"run was trained on the field text of .*a.jsonl: leave out --field id"):
        source.read_again("run", None, "id")
    with pytest.raises(UserError, match="--field chooses a field of --data: give both"):
        open_text(None, field="text")


def test_marks_in_a_quoted_name_part_no_columns() -> None:
    assert fields.field_of("a.csv", '"text, or more";label\nHello;1\n', "text, or more") == "Hello"


@pytest.mark.parametrize("seed", range(20))
def test_tables_between_tabs_with_quotation_marks_and_without(seed: int) -> None:
    draw = random.Random(seed)
    width = draw.randint(2, 4)
    cells = [["".join(draw.choices('ab "\n', k=draw.randint(0, 6))) for _ in range(width)] for _ in range(20)]
    rows = [[f"name{column}" for column in range(width)], *cells]
    file = io.StringIO()
    csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)
    assert [row for _, row in fields._rows("a.tsv", file.getvalue())] == rows
    lines = [[cell.replace("\n", "a") for cell in row] for row in rows]  # as files of those who quote nothing
    table = "".join("\t".join(row) + "\n" for row in lines)
    assert [row for _, row in fields._rows("a.tsv", table)] == [[fields._unquoted(cell) for cell in row] for row in lines]
