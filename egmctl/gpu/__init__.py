"""The only room that works a GPU; it runs in child processes, never in the command itself."""
