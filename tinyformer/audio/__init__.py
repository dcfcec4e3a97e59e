"""Sound: WAV files, and the log-mel vectors that networks read.

Read ``wav`` first, then ``features``. ``dial_tones`` makes recordings of telephone keys.
"""
