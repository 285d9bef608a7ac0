#!/bin/sh
# An Epilog for slurm.conf: what a job leaves behind. Slurm drains a node whose Epilog fails, so only a failed check (exit
# code 1) may fail it, as in slurm-prolog.sh. The kernel's log is looked at since the job began, so that an Xid is that
# job's, and one that was repaired does not drain the node again.
egmctl=/opt/egmctl/bin/egmctl # Slurm gives epilogs no PATH
scontrol=/usr/bin/scontrol
log=/var/log/egmctl-epilog.log

if [ ! -x "$egmctl" ]; then
    echo "$egmctl is not there: this node was not checked" | tee "$log" >&2
    exit 0
fi
since=1d
case ${SLURM_JOB_START_TIME:-} in # seconds since 1970, where Slurm sets it (22.05 does not)
'' | *[!0-9]*) ;;
*) since=$(($(date +%s) - SLURM_JOB_START_TIME + 60))s ;;
esac
{
    echo "job ${SLURM_JOB_ID:-unknown}, the kernel's log since $since"
    /usr/bin/timeout -k 5 30 "$egmctl" doctor --format nagios --skip imex.channel --since "$since"
} >"$log" 2>&1
[ $? -ne 1 ] && exit 0
# The node's reason, as in slurm-prolog.sh.
[ -z "${SLURMD_NODENAME:-}" ] || /usr/bin/timeout 5 "$scontrol" update nodename="$SLURMD_NODENAME" state=drain \
    reason="$(sed -n 's/^EGMCTL CRITICAL - [^:]*: \(.*\) |.*/egmctl: \1/p' "$log")" >>"$log" 2>&1
exit 1
