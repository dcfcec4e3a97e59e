"""tinyformer.explore.serving"""
