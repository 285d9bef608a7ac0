"""The processes that measure, one or several, and the protocol by which the command drives them."""
