"""The measurements: their cases, the plan of those that can run here, and the processes that run them."""
