"""What all command lines share: flags, their help and errors, and the steps around a training.

``command_line`` has the flags, ``scripts`` the steps, ``short`` what a script of a page needs. The room imports common/, data/,
tokenizers/, runs/, training/ and plots/.
"""
