"""What every room asks for: errors for people, files, settings and their schema, progress, memory, words.

It imports no other room of tinyformer.
"""
