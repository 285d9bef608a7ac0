#!/bin/sh
# A stand-in for srun, installed as FOLDER/bin/srun: runs the command with the programs of FOLDER/NODE.
folder=${0%/bin/*}
printf '%s\n' "$*" >>"$folder/asked"
while [ $# -gt 0 ]; do
    case $1 in
        --nodelist=*) node=${1#*=}; shift ;;
        --*) shift ;;
        *) break ;;
    esac
done
if [ "$node" = gone ]; then
    echo 'srun: error: Unable to allocate resources: Requested node configuration is not available' >&2
    exit 1
fi
PATH=$folder/$node:$PATH exec "$@"
