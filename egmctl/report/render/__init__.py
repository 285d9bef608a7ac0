"""Renderers of documents, one file per format. They do not depend on the subject of a document."""
