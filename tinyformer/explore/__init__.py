"""The explorer: a browser page that shows how a model works. Start it with ``tinyformer explore FOLDER``.

views/ computes responses, serving/ sends them to the browser, and page/ runs there. Read ``views/questions`` first. Only
commands/ imports this package.
"""
