"""Sound: WAV files, and the log-mel vectors that networks read.

Read ``wav`` first, then ``features``. This package imports common/ and data/.
"""
