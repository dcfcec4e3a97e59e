"""The commands of ``tinyformer``, a file each, and what their command lines share.

``main`` has the table of all commands, and imports a command's file when it runs. Read ``gpt`` first, then ``command_line``
(flags) and ``setup`` (the steps around training). ``script`` is for short scripts.
"""
