"""Renders any document: one file a format. No renderer knows what a document is about."""
