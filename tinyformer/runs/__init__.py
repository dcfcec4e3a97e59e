"""tinyformer.runs"""
