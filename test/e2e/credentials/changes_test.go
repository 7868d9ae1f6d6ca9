package credentials

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/test/host"
)

// elsewhere are requests that may not have the value of the API, by their arguments of curl, with the status and a part
// of the reason.
var elsewhere = map[string]struct {
	status int
	reason string
}{
	"http://api.test/v1/check":                     {403, "not bound to http://api.test"},
	"-X DELETE https://api.test/v1/check":          {403, "this method and path"},
	"https://api.test/admin":                       {403, "this method and path"},
	"--path-as-is https://api.test/v1/../admin":    {403, "this method and path"},
	"https://pip.test/simple/":                     {403, "not bound to pip.test"},
	"--http1.1 -X TRACE https://api.test/v1/check": {405, ""},
	"-H Host:other.test https://api.test/v1/check": {421, ""},
	// These get there, with the placeholder.
	"https://other.test/v1/check": {401, ""},
	"http://other.test/v1/check":  {401, ""},
	"-L --location-trusted https://api.test/v1/redirect?to=https://other.test/v1/check": {401, ""},
}

// TestPlaceholdersElsewhere checks requests that may not have a value: those to bound hosts are refused and reported,
// and other hosts get the placeholder.
func TestPlaceholdersElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flags := w.lendAll()
	for _, box := range isolations {
		w.create(box, box, flags...)
		held := w.sh(t, box, "echo $API_TOKEN")
		for args, want := range elsewhere {
			out := w.sh(t, box, `curl -sS -w '%{http_code}' -H "Authorization: Bearer $API_TOKEN" `+args)
			if !strings.HasSuffix(out, strconv.Itoa(want.status)) || !strings.Contains(out, want.reason) {
				t.Errorf("%s, %s: got %q, want %+v", box, args, out, want)
			}
			if want.status == http.StatusForbidden {
				w.use(t, box, record.EventCredentialRefused, func(u record.Use) bool {
					return u.Secret == "api" && strings.Contains(u.Refused, want.reason)
				})
			}
		}
		for _, protocol := range []string{"--http1.1", "--http2"} {
			got := w.sh(t, box, "curl -sSi "+protocol+` -H "Authorization: Bearer $API_TOKEN" -d "token=$API_TOKEN" \
				https://api.test/v1/echo`)
			if found := within([]byte(got)); found != "" || strings.Count(got, held) != 3 {
				t.Errorf("%s, %s: the host repeats the request, and the sandbox gets %s", box, protocol, got)
			}
		}
		others := w.seen(otherHost)
		if len(others) != 3 {
			t.Errorf("%s: other.test got %d requests, want 3", box, len(others))
		}
		for _, r := range others {
			if got := r.header.Get("Authorization"); got != "Bearer "+held {
				t.Errorf("%s: other.test got %q in %s", box, got, r.uri)
			}
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

// TestChangesOfSecrets checks that a new value, another binding and the deletion of the secret hold for the next
// request, also of an open connection, and new hosts for the next connection.
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

	// The search finds what a sandbox has.
	w.set("api", "API_TOKEN", apiToken, "--hosts", apiHost)
	w.create("revealed", "container", "--secret", "api", "--reveal")
	w.sh(t, "revealed", "echo $API_TOKEN >/root/leak")
	if found := w.search(t, "revealed"); len(found) != len(searches) {
		t.Errorf("found only %q in a sandbox that has the value", found)
	}
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
