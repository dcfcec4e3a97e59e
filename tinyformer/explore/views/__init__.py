"""tinyformer.explore.views"""
