"""What the explorer computes: an answer to each question that its page asks. Nothing here knows how it is served."""
