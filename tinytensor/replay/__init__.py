"""Functions that are recorded once and replayed: as a list of calls on any device (trace.py), as one graph on a GPU
(capture.py), or in another system, such as ONNX or a web page (recording.py).

Read ``trace`` first. This package imports nn/, kernels/ and autograd/. autograd/ refers to it only in autograd/replaying.py.
"""
