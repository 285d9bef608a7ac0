"""Functions that turn a result into a document, one file per command. Only they contain the words of the output."""
