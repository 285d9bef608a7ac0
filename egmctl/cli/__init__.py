"""The command line. Each subcommand has a file that parses, calls the library, renders and chooses the exit code."""
