"""Sound: reading and writing WAV files, and the features that networks read instead of samples."""

from tinyformer.audio.features import MelConfig, hann_window, log_mel, mel_filters, power_spectrum
from tinyformer.audio.wav import read_wav, write_wav

__all__ = ["MelConfig", "hann_window", "log_mel", "mel_filters", "power_spectrum", "read_wav", "write_wav"]
