"""tinytensor.replay"""
