"""The bench processes that work GPUs, one or several, and the protocol by which the command drives them."""
