"""Sound: reading and writing WAV files, and the vectors that networks read instead of samples."""
