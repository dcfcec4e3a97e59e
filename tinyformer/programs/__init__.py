"""What all command-line programs share: flags, their help and errors, and the steps around a training.

``command_line`` has the flags, ``scripts`` the steps. The room imports common/, data/, tokenizers/, runs/, training/ and
plots/.
"""
