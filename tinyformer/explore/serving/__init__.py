"""The explorer's server, for a single user of this machine. The page's files are in ``page/``."""
