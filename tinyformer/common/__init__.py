"""What every package uses: errors, files, settings, progress, memory, words, and what made a folder."""
