"""What programs train models for: translations, numbers to add and sort, dates, and numbers dialled on a telephone.

One file for each task. ``trained`` opens a run, whatever its task. The room imports runs/, models/, decoding/, pretrained/, and
what reads the data: common/, data/, tokenizers/ and audio/.
"""
