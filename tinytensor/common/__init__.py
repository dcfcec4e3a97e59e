"""What every room asks for: checks of arguments, answers to names of other libraries, contexts around functions, plurals, folders of one's own.

It imports device/ alone.
"""
