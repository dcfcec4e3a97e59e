"""The ``tinyformer`` commands, one file each, and their shared command-line code.

``main`` holds the table of commands and imports a command's file only when it runs. Read ``gpt`` first, then ``command_line``
(flags) and ``setup`` (the steps around training). ``script`` supports short scripts.
"""
