"""What the processes of a measurement by several do: one a GPU. Only these and the worker work a GPU for the bench."""
