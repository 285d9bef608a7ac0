# Runs the command on a node and says where its output begins and ends. The command is ended when its time is over, and
# when the connection is, which closes standard input.
#
#   $0   the mark of the lines that say so
#   $1   the seconds that the command may take
#   $2   the seconds that it then has to end its children before it is killed
#   $3   node_command.sh; the rest are its arguments
#
# judge.py sends it as one line, which any login shell passes on as it is (csh, fish): so every command here ends with
# ; or &, a comment has a line of its own, and there is no backslash and no ! before anything but a space.
exec 3<&0 </dev/null;
seconds=$1 kill_after=$2 inner=$3;
shift 3;
echo;
echo "$0 begin";
timeout -k "$kill_after" "$seconds" sh -c "$inner" "$0" "$@" 3<&- &
command=$! ;
(
    while read -r line <&3; do :; done;
    kill "$command"
) >/dev/null 2>&1 &
watch=$! ;
exec 3<&-;
wait "$command";
code=$?;
kill "$watch" 2>/dev/null;
echo;
echo "$0 end $code";
exit "$code"
