"""The only package that runs work on GPUs. Only child processes use it, never the command itself."""
