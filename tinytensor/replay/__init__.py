"""A function recorded once and run again: as a list of calls on any device (trace.py), as one graph on a GPU (capture.py), or
by another system, such as ONNX or a page (recording.py).

Read ``trace`` first. The room imports nn/, kernels/ and autograd/, which knows of it only what autograd/replaying.py says.
"""
