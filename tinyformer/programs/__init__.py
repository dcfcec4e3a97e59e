"""tinyformer.programs"""
