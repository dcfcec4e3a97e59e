"""How the explorer is served: a server for one user of this machine, with the page's files in ``page/``."""
