"""The processes that work GPUs for the bench, one or several, and how the command has them measure."""
