"""What all command-line programs share: flags, their help and errors, and the steps around a training."""
