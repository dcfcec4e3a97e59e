"""tinytensor.transforms"""
