"""The command: one file a subcommand that parses, calls, renders and chooses the exit code."""
