"""How tensors, modules and graphs look in a notebook: static HTML and SVG, without scripts. Loaded only when it is needed.

Colours are the page's own colour for text and see-through fills, so that everything can be read on white and on black.
Nothing has an id, so two outputs on a page cannot clash.
"""
