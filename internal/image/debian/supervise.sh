# Runs mmdebstrap "$@" until it ends or descriptor 3 is closed by our parent, which also happens when that dies in any way. Then
# everything in our process group is asked to end; mmdebstrap clears up in that case, if it is given the time.
trap : HUP TERM # rather than '', which children would inherit
(
	read -r never <&3
	kill -TERM 0
	sleep 20
	kill -KILL 0
) >/dev/null 2>&1 &
watch=$!
mmdebstrap "$@" 3<&-
code=$?
kill -KILL $watch
kill -TERM 0 # the sleep, and whatever else is left
exit $code
