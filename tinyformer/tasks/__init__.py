"""tinyformer.tasks"""
