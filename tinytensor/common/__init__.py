"""What every room asks for: checks of arguments, answers to names of other libraries, contexts around functions, and plurals.

It imports device/ alone.
"""
