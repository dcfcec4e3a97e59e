"""Listen to a telephone: an encoder-decoder reads the sound of its keys, and writes down the number.

The encoder reads vectors, not tokens: how loud each band of frequencies is in every 10 ms. It makes its own recordings.
Keys are held for 50 ms to 2 s, and so are the pauses between them, with up to as much noise as tone; and some recordings are of
other sounds, in which there is nothing to write. It trains for about ten minutes on one core, and tells how many numbers of
new recordings are exactly right.

tinyformer train tones                     # train, and draw what the network listened to
tinyformer train tones --resume            # go on after an interruption
tinyformer record 555-0199                 # write recordings, to listen to and to transcribe
tinyformer transcribe recordings/*.wav     # write down the numbers in WAV files
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tinyformer.plots as plots
import tinytensor as tt
from tinyformer.audio.features import log_mel
from tinyformer.audio.wav import read_wav, write_wav
from tinyformer.common.errors import UserError
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.runs import commands
from tinyformer.runs.makers import Maker
from tinyformer.runs.run_folder import RunFolder, check_folder, load_weights
from tinyformer.scripting.command_line import Commands, add_run_flags, add_settings, as_flags, some_path
from tinyformer.scripting.scripts import RunSetup, draw_losses, tell_next, train_to_end
from tinyformer.tasks.dial_tones import (
    KEYS,
    MEL,
    RATE,
    SPECIALS,
    VOCAB_SIZE,
    DialBatches,
    DialTask,
    check_keys,
    dial,
    other_sound,
    random_keys,
)
from tinyformer.tasks.transcription import KIND, Transcriber, trained_transcriber
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import translation_loss
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import counted
from tinytensor.device.backend import host
from tinytensor.device.disk import make_folder, write_text

DEFAULT_OUT = "runs/dial_tones"
MADE_BY = Maker.of_kind(KIND)
RECORDINGS = "recordings"
MODEL = {"d_model": 64, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3, "d_ff": 256, "norm_first": True,
         "dropout": 0.0}  # fmt: skip
SOUND = {"source_vocab_size": 0, "target_vocab_size": VOCAB_SIZE, "source_features": MEL.num_mels, "source_stride": 4}
TRAINING = {"steps": 4000, "batch_size": 32, "optimizer": "muon", "learning_rate": 3e-3, "warmup": 100,
            "weight_decay": 0.0, "beta2": 0.98}  # fmt: skip
NOISES = {"clean": None, "10 dB": 10.0, "0 dB": 0.0}  # by how much the tones are louder than the noise

Recording = tuple[str, Any]  # the keys that were pressed, and the samples


# ---------------------------------------------------------------------------------------------------------- training


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> tuple[Trainer, Transcriber]:
    """Build a network and its trainer; a resumed run has its settings. Returns also what transcribes with that network."""
    kinds = {"task": DialTask, "model": TransformerConfig, "training": TrainingConfig}
    setup = RunSetup(folder, arguments, kinds, made_by=MADE_BY)
    task, config = setup.settings(DialTask), setup.settings(TrainingConfig, TRAINING)
    model_config = setup.settings(TransformerConfig, MODEL, **SOUND)
    tt.seed(config.seed)
    transcriber = Transcriber(Transformer(model_config), task)
    transcriber.check_positions()
    some = test_recordings(task, 0.0, config.seed, 3)
    trainer = Trainer(
        transcriber.model,
        DialBatches(task, config.batch_size, config.seed),
        config,
        folder,
        translation_loss(0.0, SPECIALS.pad),
        lambda: side_by_side(some, transcriber),
    )
    setup.begin(trainer)
    print(f"Transformer with {transcriber.model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    return trainer, transcriber


def train(arguments: argparse.Namespace) -> None:
    """Train, or go on training; then test with new recordings, and draw what the network listened to."""
    with RunFolder(arguments.out).held() as folder:
        trainer, transcriber = prepare(folder, arguments)
        train_to_end(trainer, MADE_BY.train_command(folder.path))
        load_weights(transcriber.model, folder.best)
        print(f"\nTrained in {trainer.total_seconds:.0f} s; the best weights are those of step {trainer.best_step}.")
        test(transcriber, trainer.config.seed, folder)
        draw_losses(trainer, "Dial tones", transcriber.model.config.dropout)
        keys, samples = test_recordings(transcriber.task, 0.0, trainer.config.seed, 1)[0]
        draw(transcriber, samples, f"The keys {keys}, with as much noise as tone", folder.attention)
        print(f"Make recordings with: {commands.command('record')}")
        tell_next("Transcribe", MADE_BY, trainer, explored=False)


def test_recordings(task: DialTask, snr: float | None, seed: int, count: int) -> list[Recording]:
    """Recordings that training never saw, with this much noise."""
    rng = host.random.default_rng([seed, 2])
    numbers = [random_keys(task, rng) for _ in range(count)]
    return [(keys, dial(keys, rng, snr)) for keys in numbers]


def without_keys(seed: int, count: int) -> list[Recording]:
    """Recordings of silence, noise, chords, and what sounds like speech."""
    rng = host.random.default_rng([seed, 3])
    return [("", other_sound(rng)) for _ in range(count)]


def test(transcriber: Transcriber, seed: int, folder: RunFolder) -> None:
    """Print how many numbers are exactly right by the level of noise and by length, and in how many recordings without keys
    none is heard. Write them all to a file."""
    task = transcriber.task
    print(f"Numbers that are exactly right, of {counted(task.test, 'new recording')} for each level of noise:")
    lines, all_keys, all_seconds = ["sound\tseconds\tdialed\theard"], [], []
    tests = {name: test_recordings(task, snr, seed, task.test) for name, snr in NOISES.items()}
    tests["no keys"] = without_keys(seed, task.test)
    for name, recordings in tests.items():
        heard = transcriber.transcribe([samples for _, samples in recordings])
        rights = [keys == ours for (keys, _), ours in zip(recordings, heard)]
        seconds = [len(samples) / RATE for _, samples in recordings]
        print(f"    {name:7s} {100 * sum(rights) / task.test:6.2f} %")
        lines += [f"{name}\t{s:.1f}\t{keys}\t{ours}" for s, (keys, _), ours in zip(seconds, recordings, heard)]
        if name in NOISES:
            all_keys += [(len(keys), right) for (keys, _), right in zip(recordings, rights)]
            all_seconds += list(zip(seconds, rights))
    print(f"By the number of keys: {by_size(all_keys, (5, 8))}; by the length in seconds: {by_size(all_seconds, (2, 4, 8))}")
    write_text(folder.sample, "\n".join(lines) + "\n")
    print(f"Wrote all of them to {folder.sample}")


def by_size(results: Sequence[tuple[float, bool]], limits: Sequence[int]) -> str:
    """How many of the results are right, in groups: those with a size up to the first of the limits, and so on."""
    bounds = [(0.0, limits[0]), *zip(limits, limits[1:]), (limits[-1], math.inf)]
    names = [f"to {limits[0]}", *(f"to {limit}" for limit in limits[1:]), "more"]
    groups = [[right for size, right in results if low < size <= high] for low, high in bounds]
    return ", ".join(f"{name} {100 * sum(found) / len(found):.1f} %" for name, found in zip(names, groups) if found)


def side_by_side(recordings: Sequence[Recording], transcriber: Transcriber) -> str:
    """What the network hears now, beside what was dialed."""
    heard = transcriber.transcribe([samples for _, samples in recordings])
    return "\n".join(f"    dialed {keys:12s}  heard {ours}" for (keys, _), ours in zip(recordings, heard))


def draw(transcriber: Transcriber, samples: Any, title: str, path: str | Path) -> None:
    """Draw a recording, and what the network listens to while it writes down the keys."""
    heard = transcriber.hear(samples)
    with plots.if_possible():
        stride = transcriber.model.config.source_stride
        plots.listening(log_mel(samples, MEL), MEL, heard.weights, stride, [*heard.keys, "end"], title, path)
        print(f"Drew {path}")


# ------------------------------------------------------------------------------------------------------------- using


def transcribe(arguments: argparse.Namespace) -> None:
    """Write down the numbers in WAV files."""
    transcriber = trained_transcriber(RunFolder(arguments.out))
    recordings = [read_wav(path, RATE) for path in arguments.files]
    for path, samples in zip(arguments.files, recordings):
        transcriber.check_length(samples, path)
    most = transcriber.task.most
    for path, keys in zip(arguments.files, transcriber.transcribe(recordings, arguments.beam)):
        cut = f"\tnot finished: the model learned numbers of at most {counted(most, 'key')}" if len(keys) > most else ""
        print(f"{path}\t{keys or '(no keys)'}{cut}")
    if arguments.picture:
        draw(transcriber, recordings[0], Path(arguments.files[0]).name, arguments.picture)


def record(arguments: argparse.Namespace) -> None:
    """Write three recordings of a number as WAV files: without noise, with some, and with as much noise as tone."""
    if arguments.seed is not None and arguments.seed < 0:
        raise UserError(f"--seed must be at least 0, not {arguments.seed}")
    rng = host.random.default_rng(arguments.seed)
    usual = DialTask()
    keys = random_keys(usual, rng) if arguments.keys is None else re.sub(r"[\s()-]", "", arguments.keys)
    check_keys(keys)
    out = Path(arguments.out)
    check_folder(out)
    make_folder(out)
    for name, snr in NOISES.items():
        shown = keys.replace("*", "star").replace("#", "hash")  # these characters have a meaning for shells
        path = out / f"{shown}_{name.replace(' ', '')}.wav"
        write_wav(path, dial(keys, rng, snr), RATE)
        print(f"Wrote {path}: {keys}, {name}")
    if not usual.fewest <= len(keys) <= usual.most:
        learned = f"{usual.fewest} to {usual.most}, unless it is trained with other --fewest and --most"
        print(f"This number has {counted(len(keys), 'key')}; the network learns {learned}.")


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line, of ``train``, ``transcribe`` or ``record``."""
    parser = Commands("tinyformer", "Train a network to hear telephone keys, and transcribe with it.", DEFAULT_OUT, KIND)
    training = parser.add(
        train,
        help="train",
        description=f"Train a network to hear telephone keys. Its own defaults: {as_flags(MODEL | TRAINING)}.",
        shown="train tones",
    )
    add_run_flags(training, DEFAULT_OUT)
    add_settings(training, DialTask, "task")
    add_settings(training, TransformerConfig, "model")
    add_settings(training, TrainingConfig, "training")
    using = parser.add_use(transcribe, help="write down the numbers in WAV files", description="Transcribe recordings.")
    text = f"WAV files with one channel of {RATE:,} 16-bit samples a second"
    using.add_argument("files", help=text, type=some_path, nargs="+", metavar="FILE")
    using.add_argument("--beam", help="the width of the beam; 1 is greedy", type=int, default=1, metavar="INT")
    using.add_argument("--picture", help="draw the first recording to this PNG", type=some_path, metavar="FILE")
    recording = parser.add(
        record,
        help="write recordings as WAV files",
        description="Write three recordings of a number: without noise, with some (10 dB), and with as much noise as tone.",
    )
    recording.add_argument("keys", help=f"the number, of {KEYS} (default: a random one)", nargs="?", metavar="KEYS")
    recording.add_argument("--seed", help="random seed of tempo, pitch, level and noise", type=int, metavar="INT")
    recording.add_argument("--out", help="the folder of the files", default=RECORDINGS, type=some_path, metavar="FOLDER")
    return parser.parse(words)
