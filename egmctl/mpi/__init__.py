"""Communication between the commands of an MPI job, one command per rank: the only package that imports mpi4py."""
