"""tinytensor.common"""
