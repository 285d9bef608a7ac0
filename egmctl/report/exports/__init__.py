"""Machine-readable formats, written from results and not from documents."""
