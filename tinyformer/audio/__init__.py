"""Audio: WAV files, and log-mel vectors as network inputs.

Read ``wav`` first, then ``features``. ``dial_tones`` synthesizes recordings of telephone keys.
"""
