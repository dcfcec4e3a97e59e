"""What every room asks for: checks of arguments, answers to names of other libraries, plurals, folders of one's own.

It imports device/ alone.
"""
