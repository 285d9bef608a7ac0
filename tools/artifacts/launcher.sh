#!/bin/sh
# -I: nothing of the user's environment or current folder is imported.
here=$(readlink -f "$0")
exec "${here%/bin/*}/python/bin/python3.13" -I -m egmctl "$@"
