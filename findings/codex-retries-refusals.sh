#!/bin/sh
# Version: @openai/codex 0.171.0 (npm), with a model provider of one's own (wire_api "responses").
#
# Guess: a client of an HTTP API asks again after 429, which says "later", and gives up after 402, 403 or 404, which will
# not change. So a gateway that refuses a request for good answers with 403.
#
# Behaviour: the other way round. 402, 403 and 404 are sent again five times, with growing pauses, before the error
# is shown. 429 and 400 end the turn at once. A gateway that wants its refusal to be seen has to answer with 400.
#
# Output seen:
#   400: 1 request
#   402: 6 requests
#   403: 6 requests
#   404: 6 requests
#   429: 1 request
#
# It needs npm and python3, and takes about a minute.
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
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = int(self.path.split("/")[1])
        with open("requests", "a") as f:
            f.write("%d\n" % status)
        body = json.dumps({"error": {"message": "refused", "type": "invalid_request_error", "code": None}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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

: >requests
mkdir -p home work
for status in 400 402 403 404 429; do
	(cd work && env -i PATH="$PATH" HOME="$dir/home" CODEX_HOME="$dir/home" KEY=key "$codex" exec --skip-git-repo-check \
		--sandbox danger-full-access -m some-model -c 'model_provider="h"' \
		-c "model_providers.h={name=\"h\",base_url=\"http://127.0.0.1:$port/$status\",wire_api=\"responses\",env_key=\"KEY\"}" \
		hello >"$dir/out" 2>&1 </dev/null) || true
	n=$(grep -c "^$status" requests || true)
	if [ "$n" = 1 ]; then echo "$status: 1 request"; else echo "$status: $n requests"; fi
done >seen
cat seen
cat >want <<'WANT'
400: 1 request
402: 6 requests
403: 6 requests
404: 6 requests
429: 1 request
WANT
cmp seen want
