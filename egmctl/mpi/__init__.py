"""Commands that know of each other through MPI, one a rank: the only room that imports mpi4py."""
