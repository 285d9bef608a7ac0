#!/bin/sh
# A Prolog for slurm.conf that keeps jobs from a node with a fault: Slurm drains a node whose Prolog fails, and requeues
# the job. Only what the doctor calls a failure of the node (exit code 1) may do that: not a warning, not a doctor that
# itself broke or took too long. Without --for it judges what the platform has, and no setting: where jobs need EGM, add
# --expect egm. An IMEX channel is the job's, not the node's. What this cannot see: docs/slurm.md.
egmctl=/opt/egmctl/bin/egmctl # Slurm gives prologs no PATH
scontrol=/usr/bin/scontrol
log=/var/log/egmctl-prolog.log

if [ ! -x "$egmctl" ]; then # in the log, and in slurmd's: a node that nobody looks at is no healthy one
    echo "$egmctl is not there: this node was not checked" | tee "$log" >&2
    exit 0
fi
/usr/bin/timeout -k 5 30 "$egmctl" doctor --format nagios --skip imex.channel >"$log" 2>&1
[ $? -ne 1 ] && exit 0
# The first cause becomes the reason that sinfo -R shows; Slurm keeps it, and by itself says only "Prolog error". Slurm
# advises against its commands in prologs, as all nodes of a job would call at once: here only a node with a fault does.
[ -z "${SLURMD_NODENAME:-}" ] || /usr/bin/timeout 5 "$scontrol" update nodename="$SLURMD_NODENAME" state=drain \
    reason="$(sed -n 's/^EGMCTL CRITICAL - [^:]*: \(.*\) |.*/egmctl: \1/p' "$log")" >>"$log" 2>&1
exit 1
