"""Makes a document of each result: one file a command. What is known becomes words here, and nowhere else."""
