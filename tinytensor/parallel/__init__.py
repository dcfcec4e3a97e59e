"""tinytensor.parallel"""
