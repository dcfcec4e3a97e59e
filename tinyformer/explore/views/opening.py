"""The page's initial text for a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from tinyformer.common.errors import UserError
from tinyformer.common.files import read_file
from tinyformer.data.reading import TextSource
from tinyformer.data.synthetic import dates
from tinyformer.explore.views.passages import Answer, Named
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.tokenizers.special import mask_name
from tinyformer.tokenizers.texts import opening_text
from tinyformer.training.comparison import middle_sentence, read_translations
from tinyformer.training.run_folder import RunFolder

MOST_BYTES = 1 << 24  # of a run's corpus, read to find one line
SHORTEST, LONGEST_LINE = 36, 72  # characters; maps of such a line fit the page
# Texts for models without a corpus. The two names in the first make heads that attend to the same word easy to see.
PROMPTS = ("When Mary and John went to the store, John gave a drink to", "to be, or not to be", "the cat sat on the mat")
MASKED = "The capital of France is {mask}."
SENTENCES = (dates(1)[0][0], "The house is small.", "hello")


def opening(subjects: Subjects, asked: Named) -> Answer:
    """Return an initial ``text`` for a model, preferably a line of its corpus, and the ``source`` that it translates."""
    subject, folder = subjects.get(asked.model), subjects.folder(asked.model)
    source, text = "", ""
    if subject.kind == "translation":
        source, text = _translated(subject, folder)
    elif subject.kind == "masked":
        name = mask_name(subject.tokenizer.special) or ""
        masked = filter(None, (_with_mask(subject, line, name) for line in _own_lines(folder)))
        text = _first(subject, [*_some(masked), MASKED.format(mask=name), name])
    else:
        text = _first(subject, [*_some(_own_lines(folder)), *PROMPTS, opening_text(subject.tokenizer)])
    return {"text": text, "source": source}


def _translated(subject: Subject, folder: RunFolder | None) -> tuple[str, str]:
    """Return a sentence and its translation: a held-out one if the run has ended, otherwise the model's current translation."""
    with suppress(UserError, OSError):  # the run has not ended, or its file is damaged
        translated = read_translations(folder.sample) if folder is not None else []
        if translated:
            source = middle_sentence(translated)
            return source, next(one.ours for one in translated if one.source == source)
    source = _first(subject, SENTENCES, source=True)
    translator = subject.translator
    if not source or translator is None:
        return "", ""
    found = translator.search([source], beam=1)[0][0]
    if found.end is None:  # for example, the model has not learned to end: leave room to continue
        found = replace(found, ids=found.ids[: len(found.ids) // 2])
    return source, translator.text(found)


def _own_lines(folder: RunFolder | None) -> Iterator[str]:
    """Yield lines of the run's corpus, from the validation split on. Without a corpus, use the run's final sample."""
    if folder is None:
        return
    text = None
    with suppress(UserError, OSError):  # a run without a corpus, or with an unreadable one
        source = folder.read_part("data", TextSource)
        text = source.still_there(folder.as_found(source.path), MOST_BYTES)
    if text is not None:
        yield from _good_lines(text[len(text) * 9 // 10 :])
        yield from _good_lines(text)
        return
    with suppress(UserError, OSError):  # a run without a sample
        yield from _good_lines(read_file(folder.sample, MOST_BYTES).decode("utf-8", errors="replace"))


def _good_lines(text: str) -> Iterator[str]:
    """Yield lines of medium length, mostly letters. Skip the first line, which may be cut off."""
    for line in text.split("\n")[1:]:
        line = line.strip()
        if SHORTEST <= len(line) <= LONGEST_LINE and sum(map(str.isalpha, line)) > 0.6 * len(line):
            yield line


def _with_mask(subject: Subject, line: str, name: str) -> str:
    """Replace the word nearest the middle that is a single token with a mask. Return "" if there is none."""
    words = line.split(" ")
    for at in sorted(range(len(words)), key=lambda at: abs(2 * at + 1 - len(words))):
        word = words[at].strip(".,;:!?'\"")
        if len(word) > 2 and word.isalpha() and len(subject.tokenizer.encode(word)) == 1:
            return " ".join([*words[:at], words[at].replace(word, name), *words[at + 1 :]])
    return ""


def _some(lines: Iterable[str], most: int = 3) -> list[str]:
    return [line for line, _ in zip(lines, range(most))]


def _first(subject: Subject, texts: Iterable[str], source: bool = False) -> str:
    """Return the first text that the model can read in one pass, or ""."""
    for text in texts:
        try:
            ids = subject.encode(text, source)
        except UserError:  # it has letters unknown to the tokenizer
            continue
        if len(ids) <= (subject.longest or len(ids)):
            return text
    return ""
