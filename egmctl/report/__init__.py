"""Pure functions that convert results to text, pages and data."""
