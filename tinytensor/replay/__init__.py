"""A function recorded once and run again: as a list of calls on any device (trace.py), as one graph on a GPU (capture.py)."""
