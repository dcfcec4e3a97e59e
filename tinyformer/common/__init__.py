"""tinyformer.common"""
