"""Code shared by all packages: errors, files, settings, progress, memory, words, and what created a folder."""
