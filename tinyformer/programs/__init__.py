"""The commands of ``tinyformer``: a program for each kind of model, which trains it and then uses it.

``main`` has the table of all commands, and imports a program when it runs it. Read ``gpt`` first. This is the highest room.
"""
