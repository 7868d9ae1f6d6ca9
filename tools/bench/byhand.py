# Starts an agent that speaks the Agent Client Protocol, and sends it a prompt: what Harvest's bridge does, by hand.
# Arguments: "find" and a file, which gets the command and environment of the agent that the bridge has started;
# "start", that file and a prompt; "end" and "harvest" or
# "hand", which kills the agents of that way.
import glob, json, os, signal, subprocess, sys, time


def find(to):
    for p in glob.glob("/proc/[0-9]*"):
        try:
            parent = open(p + "/stat").read().rsplit(")", 1)[1].split()[1]
            bridge = open(f"/proc/{parent}/cmdline").read()
            if not bridge.split("\0")[0].endswith("harvest-acp"):
                continue
            args = open(p + "/cmdline").read().split("\0")[:-1]
            env = dict(v.split("=", 1) for v in open(p + "/environ").read().split("\0") if "=" in v)
            json.dump({"args": args, "exe": os.readlink(p + "/exe"), "env": env, "dir": os.readlink(p + "/cwd")},
                      open(to, "w"))
            return
        except OSError:
            continue
    sys.exit("no agent runs")


def start(at, prompt):
    how = json.load(open(at))
    agent = subprocess.Popen(how["args"], executable=how["exe"], env=how["env"], cwd=how["dir"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)

    def ask(number, method, params):
        agent.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
        agent.stdin.flush()
        while True:
            m = json.loads(agent.stdout.readline())
            if m.get("id") == number and "method" not in m:
                return m["result"]

    ask(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    session = ask(2, "session/new", {"cwd": how["dir"], "mcpServers": []})["sessionId"]
    ask(3, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": prompt}]})


def running(way):
    """Returns the processes of a way, parents first."""
    parents, found = {}, []
    for p in glob.glob("/proc/[0-9]*"):
        try:
            parents[int(p[6:])] = int(open(p + "/stat").read().rsplit(")", 1)[1].split()[1])
            args = open(p + "/cmdline").read().split("\0")
        except OSError:
            continue
        if args[0].endswith("harvest-acp") if way == "harvest" else args[-4:-2] == ["start", "/tmp/by-hand.json"]:
            found.append(int(p[6:]))
    for p in found:
        found += [c for c, parent in parents.items() if parent == p and c not in found]
    return found


def end(way):
    while alive := running(way):
        for p in alive:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


if sys.argv[1] == "end":
    end(sys.argv[2])
elif sys.argv[1] == "find":
    find(sys.argv[2])
else:
    start(sys.argv[2], sys.argv[3])
