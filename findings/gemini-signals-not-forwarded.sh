#!/bin/sh
# Version: @google/gemini-cli 0.61.0 (npm), as an agent of the Agent Client Protocol: gemini --acp.
#
# Guess: SIGTERM ends the agent. It is the signal of supervisors, containers and editors, which send it to the process
# that they have started. A program without a handler ends at once, and one that starts another passes the signal on.
#
# Behaviour: the command is a launcher that starts itself again with other options for Node.js. It ignores SIGTERM,
# SIGINT and SIGHUP, and does not pass them on: the agent works on as if nothing had happened. If the whole process
# group gets the signal, as from a terminal, the agent ends, and then its launcher, with status 0. So it does when its
# input ends. A supervisor has to signal the group, or will find after its grace period that it has to kill.
#
# Output seen:
#   SIGTERM to the process: running after 5 seconds
#   SIGINT to the process: running after 5 seconds
#   SIGHUP to the process: running after 5 seconds
#   SIGTERM to the group: exit status 0
#   end of input: exit status 0
#
# It needs npm, node and python3.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-save --ignore-scripts @google/gemini-cli@0.61.0 >/dev/null
mkdir home work
cat >main.py <<'PY'
import json, os, signal, subprocess


def attempt(name, stop):
    env = {"PATH": os.environ["PATH"], "HOME": os.path.abspath("home"), "GEMINI_API_KEY": "key"}
    p = subprocess.Popen([os.path.abspath("node_modules/.bin/gemini"), "--acp"], cwd="work", env=env,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         start_new_session=True)
    try:
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
                   "params": {"protocolVersion": 1, "clientCapabilities": {}}}
        p.stdin.write(json.dumps(request).encode() + b"\n")
        p.stdin.flush()
        assert json.loads(p.stdout.readline())["result"]["protocolVersion"] == 1
        stop(p)
        try:
            print("%s: exit status %d" % (name, p.wait(5)))
        except subprocess.TimeoutExpired:
            print("%s: running after 5 seconds" % name)
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()


for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    attempt("%s to the process" % s.name, lambda p: p.send_signal(s))
attempt("SIGTERM to the group", lambda p: os.killpg(p.pid, signal.SIGTERM))
attempt("end of input", lambda p: p.stdin.close())
PY
python3 main.py >seen
cat seen
cat >want <<'WANT'
SIGTERM to the process: running after 5 seconds
SIGINT to the process: running after 5 seconds
SIGHUP to the process: running after 5 seconds
SIGTERM to the group: exit status 0
end of input: exit status 0
WANT
cmp seen want
