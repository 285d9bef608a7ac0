# Becomes egmctl on a node, if it is there and of the requested version.
#
#   $0   the mark of the lines that say which version is there, or that none is
#   $1   the version to run; empty: any
#   $2   an environment variable for it, NAME=VALUE
#   $3   egmctl, by name or path; the rest are its arguments
#
# Sent as one line, as node_watch.sh is.
case $3 in
    "~/"*) tool=$HOME/${3#??} ;;
    *) tool=$3 ;;
esac;
command -v "$tool" >/dev/null 2>&1 || {
    echo "$0 lacks";
    exit 127;
};
seen=$("$tool" --version 2>/dev/null | head -n 1);
echo "$0 version $seen";
case $1 in
    "" | "$seen") ;;
    *) exit 0 ;;
esac;
export "$2";
shift 3;
exec "$tool" "$@"
