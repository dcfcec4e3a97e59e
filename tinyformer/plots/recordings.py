"""Pictures of sounds, and of what a network listened to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinyformer.audio.features import MelConfig, filter_corners
from tinyformer.plots.drawing import save
from tinytensor import Tensor

LABELLED = 8  # frequencies that have a label, at most


def listening(
    decibels: Any,
    config: MelConfig,
    weights: Sequence[Tensor],
    stride: int,
    written: Sequence[str],
    title: str,
    path: str | Path,
) -> Path:
    """Draw log-mel vectors (frames, mels), and under them what each layer of a decoder listened to, to a PNG. Returns its path.

    ``weights`` are those of the attention to the sound, (heads, tokens, positions) for each layer; the mean over the heads is
    drawn. A position is ``stride`` frames wide. ``written`` holds the tokens, each in the row of the weights with which it was
    written. All panels have the same axis of time. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    hop = config.hop / config.rate
    seconds, width = len(decibels) * hop, stride * hop  # of the sound, and of a position
    heights = [2.2] + [0.5 + 0.16 * len(written)] * len(weights)
    figure = Figure(figsize=(min(max(4.0, 2.2 * seconds), 16.0), 0.6 + sum(heights)), layout="constrained")
    top, *below = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    begin = -hop / 2  # a frame is centred on its time
    look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    top.imshow(decibels.T, origin="lower", cmap="magma", extent=(begin, begin + seconds, -0.5, config.num_mels - 0.5), **look)
    places = range(0, config.num_mels, -(-config.num_mels // LABELLED))
    top.set_yticks(places, [f"{filter_corners(config)[i + 1]:.0f}" for i in places], fontsize=7)
    top.set_ylabel("frequency (Hz)", fontsize=8)
    top.set_title(title, fontsize=9, loc="left", parse_math=False)
    for layer, (axes, of_layer) in enumerate(zip(below, weights)):
        mean = of_layer.mean(axis=0).numpy()
        extent = (-width / 2, -width / 2 + width * mean.shape[1], len(written) - 0.5, -0.5)
        axes.imshow(mean, cmap="Blues", vmin=0, vmax=1, extent=extent, **look)
        axes.set_yticks(range(len(written)), written, fontsize=7)
        axes.set_ylabel("written", fontsize=8)
        axes.set_title(f"what layer {layer + 1} of {len(weights)} listened to", fontsize=8, loc="left")
    figure.axes[-1].set_xlabel("seconds", fontsize=8)
    figure.axes[-1].tick_params(axis="x", labelsize=7)
    figure.axes[-1].set_xlim(begin, begin + seconds)
    return save(figure, path, 130)
