"""Views of results: pure functions to text, JSON and CSV, one file a form."""
