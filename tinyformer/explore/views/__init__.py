"""The explorer's computations: an answer to each question from its page. Nothing here depends on the server."""
