"""Sound: reading and writing WAV files, and the vectors that networks read instead of samples.

Read ``wav`` first, then ``samples`` and ``features``. ``dial_tones`` makes recordings of telephone keys.
"""
