"""The explorer: a page in the browser that shows what a model does. Start it with ``python -m tinyformer.explore FOLDER``."""
