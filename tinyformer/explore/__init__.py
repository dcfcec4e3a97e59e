"""The explorer: a page in the browser that shows what a model does. Start it with ``tinyformer explore FOLDER``.

views/ is what it computes, serving/ how a browser gets it, page/ what the browser runs. Read ``views/questions`` first. Only
programs/ imports this room.
"""
