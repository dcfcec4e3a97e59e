"""Functions recorded once and run again: as a list of calls on any device (trace.py), as one graph on a GPU (capture.py), or
by another system, such as ONNX or a web page (recording.py).

Read ``trace`` first. This package imports nn/, kernels/ and autograd/, which knows it only through autograd/replaying.py.
"""
