"""tinytensor.device"""
