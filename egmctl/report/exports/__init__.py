"""Exports data: formats that programs read. None of them is made from a document."""
