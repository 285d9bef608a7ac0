#!/bin/sh
# Waits for the tests to end, however they do, and removes what they leave: processes and cgroups, mounts and files.
#
#   clean.sh FOLDER [CGROUP ...] <PIPE      the end of the pipe is the end of the tests
folder=$1; shift
cat
for name; do
    for top in "/sys/fs/cgroup/$name" /sys/fs/cgroup/*/"$name"; do
        while [ -d "$top" ]; do
            find "$top" -name cgroup.procs -exec cat {} + | xargs --no-run-if-empty kill -KILL
            find "$top" -depth -type d -exec rmdir {} + || sleep 0.1
        done
    done
done 2>/dev/null
rm -f "/run/cdi/${folder##*/}.json"
umount --lazy "$folder/python" "$folder/tree" "$folder/packages" && rm -r --one-file-system "$folder"
