"""The cases, one file per family. A new case needs a line in its file and a test that makes it fail."""
