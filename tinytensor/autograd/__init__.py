"""tinytensor.autograd"""
