"""The explorer: a page in the browser that shows what a model does. Start it with ``python -m tinyformer.explore FOLDER``.

views/ is what it computes, serving/ how a browser gets it, page/ what the browser runs. Read ``views/questions`` first. This is
the highest room: no other imports it.
"""
