#!/bin/sh
# A Prolog for slurm.conf that keeps jobs from a node with a fault: Slurm drains a node whose Prolog fails, and requeues
# the job. Only what the doctor calls a failure of the node (exit code 1) may do that: not a warning, not a doctor that
# itself broke or took too long. An IMEX channel is the job's, not the node's. What this cannot see: docs/slurm.md.
egmctl=/opt/egmctl/bin/egmctl # Slurm gives prologs no PATH
log=/var/log/egmctl-prolog.log

/usr/bin/timeout -k 5 30 "$egmctl" doctor --brief --for egm,p2p,fabric --skip imex.channel >"$log" 2>&1
[ $? -ne 1 ]
