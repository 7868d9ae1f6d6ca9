package credentials

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPlaceholdersElsewhere checks requests that may not have a value: those to bound hosts are refused and reported, and
// other hosts get the placeholder at most.
func TestPlaceholdersElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flags := w.lendAll()
	for _, box := range isolations {
		w.create(box, box, flags...)
		for args, refused := range map[string]string{
			"http://api.test/v1/check":                     "not bound to http://api.test",
			"-X DELETE https://api.test/v1/check":          "this method and path",
			"https://api.test/admin":                       "this method and path",
			"--path-as-is https://api.test/v1/../admin":    "this method and path",
			"https://pip.test/simple/":                     "not bound to pip.test",
			"--http1.1 -X TRACE https://api.test/v1/check": "TRACE",
			"-H Host:other.test https://api.test/v1/check": "",
		} {
			out := w.sh(t, box, `curl -sS -w '%{http_code}' -H "Authorization: Bearer $API_TOKEN" `+args)
			switch {
			case refused == "":
				if !strings.HasSuffix(out, "421") {
					t.Errorf("%s, %s: got %q, want 421", box, args, out)
				}
			case refused == "TRACE":
				if !strings.HasSuffix(out, "405") {
					t.Errorf("%s, %s: got %q, want 405", box, args, out)
				}
			default:
				if !strings.HasSuffix(out, "403") || !strings.Contains(out, refused) {
					t.Errorf("%s, %s: got %q, want 403 and %q", box, args, out, refused)
				}
				w.use(t, box, string(record.EventCredentialRefused), func(u record.Use) bool {
					return u.Secret == "api" && strings.Contains(u.Refused, refused)
				})
			}
		}
		for _, args := range []string{"https://other.test/v1/check", "http://other.test/v1/check",
			"-L --location-trusted 'https://api.test/v1/redirect?to=https://other.test/v1/check'"} {
			if out := w.sh(t, box, `curl -sS -w '%{http_code}' -H "Authorization: Bearer $API_TOKEN" `+args); !strings.
				HasSuffix(out, "401") {
				t.Errorf("%s, %s: got %q, want 401", box, args, out)
			}
		}
		for protocol, got := range map[string]string{"--http1.1": "", "--http2": ""} {
			got = w.sh(t, box, `curl -sSi `+protocol+` -H "Authorization: Bearer $API_TOKEN" -d "token=$API_TOKEN" \
				https://api.test/v1/echo`)
			if found := within([]byte(got)); found != "" || strings.Count(got, w.sh(t, box, "echo $API_TOKEN")) != 3 {
				t.Errorf("%s, %s: the host repeats the request, and the sandbox gets %s", box, protocol, got)
			}
		}
	}
	others := w.seen(otherHost)
	if len(others) != 3*len(isolations) {
		t.Errorf("other.test got %d requests, want 3 of each sandbox", len(others))
	}
	for _, r := range others {
		if found := within([]byte(strings.Join(r.header["Authorization"], " "))); found != "" || r.header["Authorization"] == nil {
			t.Errorf("other.test got %q in %s", r.header["Authorization"], r.uri)
		}
	}
}

// asker is a program with one connection. It sends a request for each line of input.
const asker = `
import http.client, os, ssl, sys
c = http.client.HTTPSConnection("api.test", timeout=60)
for line in sys.stdin:
    c.request("GET", "/v1/check", headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]})
    r = c.getresponse()
    text = r.read()
    print(r.status, "kept" if c.sock else "closed", flush=True)
`

// TestChangesOfSecrets checks that a new value holds for the next request, also of an open connection, that another
// binding and the deletion of the secret do, and that new hosts hold for the next connection.
func TestChangesOfSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := time.Now()
	w.set("api", "API_TOKEN", apiToken, "--hosts", apiHost)
	for _, box := range isolations {
		w.accept(apiToken)
		w.set("api", "API_TOKEN", apiToken, "--hosts", apiHost)
		w.create(box, box, "--secret", "api")
		cmd := w.Command(context.WithoutCancel(t.Context()), "sandbox", "exec", "-i", box, "--", "python3", "-c", asker)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewScanner(out)
		ask := func(what, want string) {
			t.Helper()
			if _, err := in.Write([]byte("ask\n")); err != nil {
				t.Fatal(err)
			}
			if !answers.Scan() || answers.Text() != want {
				t.Errorf("%s, %s: got %q, want %q", box, what, answers.Text(), want)
			}
		}
		const check = `curl -s -w '%{http_code}' -H "Authorization: Bearer $API_TOKEN" -o /dev/null https://`
		ask("at first", "200 kept")
		w.accept(nextToken)
		ask("when the host has another value", "401 kept")
		w.set("api", "API_TOKEN", nextToken)
		ask("with that value", "200 kept")
		w.set("api", "API_TOKEN", nextToken, "--hosts", apiHost, "--allow", "POST /**")
		ask("with a rule", "403 kept")
		w.set("api", "API_TOKEN", nextToken, "--hosts", otherHost)
		ask("with another host", "403 kept")
		if got := w.sh(t, box, check+"other.test/v1/check"); got != "200" {
			t.Errorf("%s: the new host answers %s", box, got)
		}
		if got := w.sh(t, box, check+"api.test/v1/check"); got != "401" {
			t.Errorf("%s: the old host, which gets the placeholder, answers %s", box, got)
		}
		w.Must("secret", "rm", "api")
		if got := w.sh(t, box, check+"other.test/v1/check"); got != "401" {
			t.Errorf("%s: after the end of the secret, the host answers %s", box, got)
		}
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		w.sealed(t, box)
	}
	w.sealedHere(t, begun)
}

// TestRestarts checks that credentials work, and stay outside, after each way in which a sandbox continues: in the next
// server, in a snapshot, and in a fork.
func TestRestarts(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	begun := time.Now()
	flags := w.lendAll()
	stop := w.UpUntil()
	check := func(what, box string) {
		t.Helper()
		if got := w.sh(t, box, `curl -sSf -K ~/.curlrc.saved https://api.test/v1/check
curl -sSf -H "X-Api-Key: $API_TOKEN" https://api.test/v1/check
git ls-remote https://x-access-token:$GIT_TOKEN@git.test/project.git refs/heads/main | wc -l`); got !=
			"HTTP/2.0 authorized\nHTTP/2.0 authorized\n1" {
			t.Errorf("%s: %s: got %q", what, box, got)
		}
		w.sealed(t, box)
	}
	all := func(what string) {
		t.Helper()
		for _, box := range isolations {
			check(what, box)
		}
		w.sealedHere(t, begun)
	}
	for _, box := range isolations {
		w.create(box, box, flags...)
		w.sh(t, box, `echo "header = \"Authorization: Bearer $API_TOKEN\"" >~/.curlrc.saved`)
		w.Must("sandbox", "exec", "-d", box, "--", "sleep", "1000")
	}
	all("at first")
	stop()
	all("after the server ended") // the next command starts one
	w.Kill()
	all("after the server was killed")
	for _, box := range isolations {
		image := strings.TrimSpace(w.Must("sandbox", "snapshot", box, "-o", "name"))
		args := append([]string{"--image", image}, flags...)
		w.create(box+"-of-image", box, args...)
		check("in a sandbox of a snapshot", box+"-of-image")
		w.Must("sandbox", "fork", box, "--name", box+"-fork")
		check("in a fork", box+"-fork")
		w.Kill()
		check("in a fork, after the server was killed", box+"-fork")
		w.sealedHere(t, begun)
		w.Must("sandbox", "rm", box, box+"-of-image", box+"-fork")
		w.Must("image", "rm", image)
	}
	for _, path := range host.InFiles(t, w.Data, apiToken, gitToken) {
		t.Errorf("%s has a value", path)
	}
}
