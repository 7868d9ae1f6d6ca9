#!/bin/sh
# Version: @openai/codex 0.171.0 (npm), with a model provider of one's own (wire_api "responses").
#
# Guess: the name of the model goes to the provider, and nothing else depends on it: a server that calls its model
# "gpt-6.2-sol" is offered the same tools as one that calls it "my-model".
#
# Behaviour: the name chooses the tools. A name that Codex does not know gets a function for shell commands. A name of a
# current model of OpenAI gets no functions in the field "tools" of the request at all: they come as an item of the input,
# of a type of its own, and shell commands are a call from JavaScript. A model of another maker, or a test server, behind
# such a name cannot run a command.
#
# Output seen:
#   gpt-6.2-sol: 0 tools, exec_command missing, other input additional_tools
#   my-model: 9 tools, exec_command offered, other input none
#
# It needs npm and python3.
set -eu
dir=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server"; rm -rf "$dir"' EXIT
cd "$dir"
case $(uname -m) in aarch64) arch=arm64 ;; *) arch=x64 ;; esac
npm pack --silent "@openai/codex@0.171.0-linux-$arch" >/dev/null
tar xzf openai-codex-*.tgz
codex=$(find "$dir/package/vendor" -type f -name codex -path '*/bin/*')

cat >server.py <<'PY'
import http.server, json


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        functions = sorted(t.get("name") or t["type"] for t in body.get("tools") or [])
        kinds = sorted({i["type"] for i in body["input"] if i["type"] != "message"})
        with open("requests", "a") as f:
            f.write("%s: %d tools, exec_command %s, other input %s\n" % (body["model"], len(functions),
                    "offered" if "exec_command" in functions else "missing", " ".join(kinds) or "none"))
        item = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        out = ""
        for e in ({"type": "response.created", "response": {"id": "r"}},
                  {"type": "response.output_item.done", "output_index": 0, "item": item},
                  {"type": "response.completed", "response": {"id": "r", "usage": usage}}):
            out += "event: %s\ndata: %s\n\n" % (e["type"], json.dumps(e))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out.encode())

    def log_message(self, *args):
        pass


s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open("port", "w") as f:
    f.write("%d\n" % s.server_port)
s.serve_forever()
PY
python3 server.py &
server=$!
until [ -s port ]; do sleep 0.1; done
port=$(cat port)

mkdir -p home work
for model in gpt-6.2-sol my-model; do
	(cd work && env -i PATH="$PATH" HOME="$dir/home" CODEX_HOME="$dir/home" KEY=key "$codex" exec --skip-git-repo-check \
		--sandbox danger-full-access -m "$model" -c 'model_provider="h"' \
		-c "model_providers.h={name=\"h\",base_url=\"http://127.0.0.1:$port/v1\",wire_api=\"responses\",env_key=\"KEY\"}" \
		hello >"$dir/out" 2>&1 </dev/null)
done
sort -u requests >seen
cat seen
cat >want <<'WANT'
gpt-6.2-sol: 0 tools, exec_command missing, other input additional_tools
my-model: 9 tools, exec_command offered, other input none
WANT
cmp seen want
