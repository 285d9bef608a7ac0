#!/bin/sh
# Run a command in the root folder of a system, as its user of a number. The caller has given this process mount and PID
# namespaces of its own, so that the mounts end with it.
#
#   inside.sh ROOT ARTEFACTS NODE USER COMMAND      ARTEFACTS and NODE are folders of this machine: the files to install,
#                                                   and the fake node, which has the same path inside
set -e
cd "$1"
mkdir -p artefacts home/u tmp proc dev
mount -t proc proc proc
mount --rbind /dev dev
mount --bind "$2" artefacts
mount -o remount,bind,ro artefacts
mount --bind "$3" ".$3"
mount --bind shared shared
mount -o remount,bind,ro shared
exec chroot . /usr/bin/setpriv --reuid "$4" --regid "$4" --clear-groups sh -c "$5"
