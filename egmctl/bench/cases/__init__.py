"""The cases, one file a family: adding a case is adding its line there and a test that makes it fail."""
