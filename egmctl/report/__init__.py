"""Pure functions from results to text, pages and data: one file per format."""
