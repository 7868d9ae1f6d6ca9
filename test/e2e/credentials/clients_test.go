package credentials

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// isolations are the kinds of sandboxes of this machine.
var isolations = []string{"gvisor", "container"}

// lendAll binds a secret to each host, and returns the flags for sandboxes with all of them.
func (w *world) lendAll() (flags []string) {
	w.t.Helper()
	w.set("git", "GIT_TOKEN", gitToken, "--hosts", gitHost)
	w.set("npm", "NPM_TOKEN", npmToken, "--hosts", npmHost)
	w.set("pip", "PIP_PASSWORD", pipToken, "--hosts", pipHost)
	// The API also by its address, which clients do not name in TLS.
	byAddress := address(slices.Index(hosts, apiHost))
	w.set("api", "API_TOKEN", apiToken, "--hosts", apiHost+","+oldHost+","+byAddress, "--allow", "GET,HEAD,POST /v1/**",
		"--allow", "POST /grpc.health.v1.Health/*")
	for _, name := range []string{"git", "npm", "pip", "api"} {
		flags = append(flags, "--secret", name)
	}
	return flags
}

// program is a client at work.
type program struct {
	name   string
	long   bool
	script string // in a new directory, with the name of its sandbox in BOX
	want   string // its output
}

var programs = []program{
	{"git", false, `
git config --global user.name me; git config --global user.email me@example.org
git clone -q https://x-access-token:$GIT_TOKEN@git.test/project.git one
cd one; git checkout -q -b by-$BOX; echo two >two; git add two; git commit -qm two; git push -q origin by-$BOX; cd ..
git -c credential.helper='!f() { test "$1" = get || exit 0; echo username=me; echo "password=$GIT_TOKEN"; }; f' \
    clone -q https://git.test/project.git two
for scheme in "Basic $(printf "x:$GIT_TOKEN" | base64 -w0)" "Bearer $GIT_TOKEN"; do
    git -c http.extraheader="Authorization: $scheme" clone -q https://git.test/project.git "three $scheme"
done
cd two; git branch -r | grep -c origin/n; git -c http.extraheader="Authorization: Bearer $GIT_TOKEN" fetch -q
git branch -r | grep -c by-$BOX`, "60\n1"},
	{"git-lfs", true, `
git config --global user.name me; git config --global user.email me@example.org
git clone -q https://x-access-token:$GIT_TOKEN@git.test/project.git one; cd one; git checkout -q -b large-$BOX
git lfs track '*.bin' 2>&1 >/dev/null; head -c 300000 /dev/urandom >large.bin; sha256sum large.bin >sum
git add -A; git commit -qm large; git push -q origin large-$BOX >/dev/null 2>&1; cd ..
git clone -q --branch large-$BOX https://x-access-token:$GIT_TOKEN@git.test/project.git two; cd two
sha256sum --quiet -c sum; head -c 5 large.bin | wc -c`, "5"},
	{"gh", true, `GH_HOST=git.test GH_ENTERPRISE_TOKEN=$GIT_TOKEN gh api user --jq .login`, "somebody"},
	{"npm", true, `
printf '//npm.test/:_authToken=${NPM_TOKEN}\nregistry=https://npm.test/\n' >.npmrc
npm install --no-audit --no-fund --loglevel=error --cache ./cache direct moved >/dev/null
ls node_modules`, "direct\nmoved"},
	{"pip", true, `
escaped=$(python3 -c 'import os, urllib.parse; print(urllib.parse.quote(os.environ["PIP_PASSWORD"], safe=""))')
pip install -q --no-cache-dir --disable-pip-version-check --root-user-action=ignore --break-system-packages \
    --target ./site --index-url "https://me%40example.org:$escaped@pip.test/simple/" widget
PYTHONPATH=./site python3 -c 'import widget; print(widget.answer)'`, "42"},
	{"curl", false, `
auth="Authorization: Bearer $API_TOKEN"
for version in --http1.1 --http2; do curl -sSf $version -H "$auth" https://api.test/v1/check; done
curl -sSf --http2 -H "$auth" https://old.test/v1/check
curl -sSf -H "X-Api-Key: $API_TOKEN" https://api.test/v1/check
curl -sSf "https://api.test/v1/check?a=1&key=$API_TOKEN&b=%20"
curl -sSf --oauth2-bearer "$API_TOKEN" https://api.test/v1/check
curl -sSf -H "$auth" https://192.0.2.4/v1/check
curl -sSf -H "$auth" --compressed https://api.test/v1/large | wc -l
curl -sSf -H "$auth" -H 'Accept-Encoding: gzip' https://api.test/v1/large | gunzip | wc -l
curl -sSI -H "$auth" https://api.test/v1/large | tr -d '\r' | sort >head
curl -sS -D - -o /dev/null -H "$auth" https://api.test/v1/large | tr -d '\r' | sort >get
grep -iv '^date' head | cmp - <(grep -iv '^date' get); grep -c 200 head
curl -sSf -H "$auth" -H 'Expect: 100-continue' -d a=b https://old.test/v1/echo | grep -c '"a=b"'
curl -sSfN -H "$auth" https://api.test/v1/stream | grep -c event`,
		"HTTP/1.1 authorized\nHTTP/2.0 authorized\nHTTP/1.1 authorized\n" + strings.Repeat("HTTP/2.0 authorized\n", 4) +
			"2000\n2000\n1\n1\n3"},
	{"Node", true, `
cat >it.mjs <<'END'
const headers = {Authorization: "Bearer " + process.env.API_TOKEN};
console.log((await (await fetch("https://api.test/v1/check", {headers})).text()).trim());
console.log((await (await fetch("https://old.test/v1/large", {headers})).text()).length);
const stream = await fetch("https://api.test/v1/stream", {headers});
let events = "";
for await (const part of stream.body.pipeThrough(new TextDecoderStream())) events += part;
console.log(events.match(/data: /g).length);
for (const host of ["api.test", "old.test"]) {
  const socket = new WebSocket("wss://" + host + "/v1/socket?key=" + process.env.API_TOKEN);
  socket.onopen = () => socket.send("one");
  console.log(await new Promise((ok, bad) => { socket.onmessage = e => ok(e.data); socket.onerror = bad; }));
  socket.close();
}
END
node it.mjs`, "HTTP/1.1 authorized\n88000\n3\necho one\necho one"},
	{"Deno", true, `
cat >it.ts <<'END'
const headers = {Authorization: "Bearer " + Deno.env.get("API_TOKEN")};
console.log((await (await fetch("https://api.test/v1/check", {headers})).text()).trim());
const socket = new WebSocket("wss://api.test/v1/socket?key=" + Deno.env.get("API_TOKEN"));
socket.onopen = () => socket.send("one");
console.log(await new Promise((ok, bad) => { socket.onmessage = e => ok(e.data); socket.onerror = bad; }));
socket.close();
END
NO_COLOR=1 deno run --quiet --no-check --allow-env --allow-net it.ts`, "HTTP/2.0 authorized\necho one"},
	{"Python", true, `
cat >it.py <<'END'
import os, urllib.request, requests, httpx
headers = {"Authorization": "Bearer " + os.environ["API_TOKEN"]}
with urllib.request.urlopen(urllib.request.Request("https://api.test/v1/check", headers=headers)) as r:
    print(r.read().decode().strip())
with requests.Session() as s:
    for host in "api.test", "old.test":
        print(s.get(f"https://{host}/v1/check", headers=headers).text.strip())
    print(len(s.get("https://api.test/v1/large", headers=headers).text))
    print(s.post("https://api.test/v1/echo", headers=headers, data=iter([b"a", b"b"])).json()["Body"])
    print(s.head("https://api.test/v1/check", headers=headers).status_code)
with httpx.Client(http2=True) as c:
    print(c.get("https://api.test/v1/check", headers=headers).text.strip())
    print(c.get("https://api.test/v1/check", params={"key": os.environ["API_TOKEN"]}).text.strip())
END
python3 it.py`, "HTTP/1.1 authorized\nHTTP/1.1 authorized\nHTTP/1.1 authorized\n88000\n['ab']\n200\n" +
		"HTTP/2.0 authorized\nHTTP/2.0 authorized"},
	{"Java", true, `
cat >It.java <<'END'
import java.net.*; import java.net.http.*; import java.net.http.HttpResponse.BodyHandlers;
public class It {
  public static void main(String[] args) throws Exception {
    var auth = "Bearer " + System.getenv("API_TOKEN");
    for (var host : new String[]{"api.test", "old.test"}) {
      var r = HttpRequest.newBuilder(URI.create("https://" + host + "/v1/check")).header("Authorization", auth).build();
      System.out.print(HttpClient.newHttpClient().send(r, BodyHandlers.ofString()).body());
    }
    var c = (HttpURLConnection) new URL("https://api.test/v1/check").openConnection();
    c.setRequestProperty("Authorization", auth);
    System.out.print(new String(c.getInputStream().readAllBytes()));
  }
}
END
java It.java`, "HTTP/2.0 authorized\nHTTP/1.1 authorized\nHTTP/1.1 authorized"},
	{"Go", true, `/go-client`, "HTTP/2.0 authorized\nHTTP/1.1 authorized\n88000\necho one\nSERVING\nNotFound\nSERVING"},
}

// TestClients checks that clients work with placeholders, unchanged and without a proxy: the hosts get the values, and
// what the clients receive is what the hosts sent.
func TestClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flags := w.lendAll()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range isolations {
		w.create(box, box, flags...)
		w.Must("sandbox", "cp", program, box+":/go-client")
	}
	t.Run("in", func(t *testing.T) {
		for _, box := range isolations {
			t.Run(box, func(t *testing.T) {
				t.Parallel()
				for _, c := range programs {
					t.Run(c.name, func(t *testing.T) { w.run(t, box, c) })
				}
				w.sealed(t, box)
			})
		}
	})
	w.checkHosts(t)
}

// run runs a client in a sandbox.
func (w *world) run(t *testing.T, box string, c program) {
	if c.long {
		testenv.Long(t)
	}
	if got := w.sh(t, box, "export BOX="+box+"; cd $(mktemp -d)\n"+c.script); got != c.want {
		t.Errorf("got %q, want %q", got, c.want)
	}
	if c.name == "git" {
		w.use(t, box, record.EventCredentialUsed, func(u record.Use) bool {
			return u.Secret == "git" && u.Key == "GIT_TOKEN" && u.Host == gitHost && u.Method == "POST" &&
				u.Status == 200
		})
	}
}

// checkHosts checks that git compressed its requests, and what came to the hosts that no secret is bound to.
func (w *world) checkHosts(t *testing.T) {
	t.Helper()
	seen := w.seen(gitHost)
	if len(seen) > 0 &&
		!slices.ContainsFunc(seen, func(r request) bool { return r.header.Get("Content-Encoding") == "gzip" }) {
		t.Error("git sent no compressed request: the test lost its subject")
	}
	for _, name := range []string{filesHost, otherHost} {
		for _, r := range w.seen(name) {
			if found := within(fmt.Appendf(nil, "%s %v", r.uri, r.header)); found != "" {
				t.Errorf("%s got a value: %s", name, found)
			}
		}
	}
}
