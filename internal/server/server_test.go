package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// world is a server on the fake engine.
type world struct {
	t      *testing.T
	engine *fake.Engine
	fleet  *fleet.Fleet
	server *server.Server
	ring   *account.Ring
	audit  testenv.Output
	url    string // of a listener that needs no key
	strict string // of one that does
	asked  chan struct{}

	headers []string // of every request
	last    string   // id of the sandbox that create made last
}

// start starts a server whose TCP address needs no key. open starts one that does.
func start(t *testing.T, changes ...func(*server.Options)) *world {
	t.Helper()
	return startOn(t, func(e *fake.Engine) engine.Engine { return e }, changes...)
}

// startOn is start with an engine made of the fake one.
func startOn(t *testing.T, made func(*fake.Engine) engine.Engine, changes ...func(*server.Options)) *world {
	t.Helper()
	eng, err := fake.Open(t.TempDir(), fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := testdb.Open(t)
	fleet, err := fleet.Open(t.Context(), fleet.Options{
		Engine: made(eng), Store: db.Sandboxes(), Timeouts: spec.Timeouts{Grace: 10 * time.Millisecond},
		Prices: reserve.Prices{CPUSecond: 0.01, GiBSecond: 0.001},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, engine: eng, fleet: fleet, asked: make(chan struct{}), ring: account.NewRing(db.Keys())}
	opts := server.Options{
		Fleet: fleet, Images: eng.Images(), Volumes: eng.Volumes(), Engine: eng.Name(), Version: "test",
		Shutdown: func() { close(w.asked) },
		Keys:     w.ring, Replays: db.Replays(), Audit: &w.audit,
	}
	for _, change := range changes {
		change(&opts)
	}
	w.server = server.New(context.WithoutCancel(t.Context()), opts)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + l.Addr().String()
	strict, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.strict = "http://" + strict.Addr().String()
	served := make(chan error, 2)
	go func() { served <- w.server.Serve(strict) }()
	go func() { served <- w.server.ServeLocal(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		all, err := fleet.List(ctx, "", record.Filter{})
		if err != nil {
			t.Error(err)
		}
		for _, s := range all {
			if err := fleet.Destroy(ctx, s.Account, s.ID); err != nil {
				t.Error(err)
			}
		}
		w.server.Stop(ctx)
		if err := errors.Join(w.server.Close(), <-served, <-served, fleet.Close(ctx), eng.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// do sends a request and returns the status and the body.
func (w *world) do(method, path, body string, header ...string) (*http.Response, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	header = append(slices.Clone(w.headers), header...)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // which follows no redirects
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(data)
}

func (w *world) create() api.Sandbox {
	w.t.Helper()
	resp, body := w.do("POST", api.Sandboxes, `{"name":"box","tags":{"team":"a"}}`)
	if resp.StatusCode != http.StatusCreated {
		w.t.Fatalf("create: %s %s", resp.Status, body)
	}
	made := parse[api.Sandbox](w.t, body)
	w.last = made.ID
	return made
}

func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// mission: A1, A6, A8
func TestSandboxLifecycle(t *testing.T) {
	t.Parallel()
	w := start(t)
	made := w.create()
	if made.Status != "running" || !strings.HasPrefix(made.ID, "sbx_") || made.Engine != "fake" ||
		len(made.Stages) == 0 {
		t.Errorf("created: %+v", made)
	}
	_, body := w.do("GET", "/v1/sandboxes/box", "")
	if got := parse[api.Sandbox](t, body); got.ID != made.ID || got.Tags["team"] != "a" {
		t.Errorf("got: %+v", got)
	}
	resp, body := w.do("POST", "/v1/sandboxes/box/exec",
		`{"args":["sh","-c","echo out; echo err >&2; cat; exit 3"],"stdin":"in"}`)
	res := parse[api.Result](t, body)
	if resp.StatusCode != http.StatusOK || res.ReturnCode != 3 || res.Stdout != "out\nin" || res.Stderr != "err\n" ||
		res.SandboxID != made.ID || res.TimedOut || res.Duration <= 0 {
		t.Errorf("exec: %s %+v", resp.Status, res)
	}
	_, body = w.do("POST", "/v1/sandboxes/box/extend", `{"timeout_seconds":60}`)
	if got := parse[api.Sandbox](t, body); !got.Expires.Before(made.Expires) {
		t.Errorf("extend: it expires at %v, before it was %v", got.Expires, made.Expires)
	}
	if resp, body := w.do("DELETE", "/v1/sandboxes/box?sync=true", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %s %s", resp.Status, body)
	}
	_, body = w.do("GET", "/v1/sandboxes/"+made.ID, "")
	if got := parse[api.Sandbox](t, body); got.Status != "terminated" || got.Ended.IsZero() {
		t.Errorf("after delete: %+v", got)
	}
}

func TestSandboxPages(t *testing.T) {
	t.Parallel()
	w := start(t)
	var ids []string
	for range 3 {
		_, body := w.do("POST", api.Sandboxes, `{"tags":{"team":"a"}}`)
		ids = append([]string{parse[api.Sandbox](t, body).ID}, ids...)
	}
	w.create()
	var got []string
	path := "/v1/sandboxes?limit=2&tag=team%3Da&all=true"
	for cursor := ""; ; {
		_, body := w.do("GET", path+"&cursor="+cursor, "")
		page := parse[api.List[api.Sandbox]](t, body)
		if len(page.Data) > 2 {
			t.Fatalf("a page of %d", len(page.Data))
		}
		for _, s := range page.Data {
			got = append(got, s.ID)
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff(ids, got[1:]); diff != "" {
		t.Errorf("pages, newest first (-want +got):\n%s", diff)
	}
	_, body := w.do("GET", "/v1/sandboxes?name=nobody", "")
	if !strings.Contains(body, `"data":[]`) {
		t.Errorf("an empty list is %s", body)
	}
}

// mission: 1.6, 8.10, 10.6, A9
func TestProblems(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code, detail       string
	}{
		"no route":       {"GET", "/v1/nothing", "", 404, "not_found", "/v1/nothing"},
		"unknown field":  {"POST", "/v1/sandboxes/box/exec", `{"arg":["x"]}`, 400, "invalid", `"arg"`},
		"unknown create": {"POST", "/v1/sandboxes", `{"imagge":"x"}`, 400, "invalid", "imagge"},
		"wrong type":     {"POST", "/v1/sandboxes/box/exec", `{"args":"x"}`, 400, "invalid", `"args"`},
		"no UTF-8":       {"POST", "/v1/sandboxes/box/exec", `{"args":["` + "\xff" + `"]}`, 400, "invalid", "UTF-8"},
		"no object":      {"POST", "/v1/volumes", `[]`, 400, "invalid", "array"},
		"no JSON":        {"POST", "/v1/volumes", `{`, 400, "invalid", "invalid JSON"},
		"syntax":         {"POST", "/v1/volumes", `{"name":]`, 400, "invalid", "byte 9"},
		"two values":     {"POST", "/v1/volumes", `{"name":"a"} {}`, 400, "invalid", "after its JSON value"},
		"too large": {"POST", "/v1/volumes", `{"name":"` + strings.Repeat("a", api.MaxBody) + `"}`, 413,
			"invalid", "exceeds"},
		"empty command": {"POST", "/v1/sandboxes/box/exec", `{}`, 400, "invalid", "empty"},
		"NUL":           {"POST", "/v1/sandboxes/box/exec", `{"args":["a\u0000b"]}`, 400, "invalid", "NUL"},
		"name with =": {"POST", "/v1/sandboxes/box/exec", `{"args":["true"],"env":{"A=B":"c"}}`, 400,
			"invalid", "A=B"},
		"endless time": {"POST", "/v1/sandboxes/box/exec", `{"args":["true"],"timeout_seconds":1e300}`, 400, "invalid",
			"timeout_seconds"},
		"negative time": {"POST", "/v1/sandboxes/box/exec", `{"args":["true"],"timeout_seconds":-1}`, 400, "invalid",
			"timeout_seconds"},
		"longest time": {"POST", "/v1/sandboxes/box/exec", `{"args":["true"],"timeout_seconds":604801}`, 400,
			"invalid", "timeout_seconds"},
		"no directory": {"POST", "/v1/sandboxes/box/exec", `{"args":["true"],"workdir":"/no/such"}`, 400,
			"invalid", "/no/such"},
		"binary code":   {"POST", "/v1/sandboxes/box/exec", `{"code":"\u0000\u0001"}`, 400, "invalid", "binary"},
		"no image":      {"POST", "/v1/sandboxes", `{"image":"nosuch"}`, 404, "not_found", "nosuch"},
		"little memory": {"POST", "/v1/sandboxes", `{"memory_bytes":1024}`, 400, "invalid", "memory"},
		"much memory":   {"POST", "/v1/sandboxes", `{"memory_bytes":1125899906842624}`, 400, "invalid", "memory"},
		"overlap": {"POST", "/v1/sandboxes", `{"volumes":[{"name":"a","path":"/d"},{"name":"b","path":"/d/e"}]}`,
			400, "invalid", "overlap"},
		"relative mount": {"POST", "/v1/sandboxes", `{"volumes":[{"name":"a","path":"d"}]}`, 400, "invalid",
			"mount point"},
		"over /proc": {"POST", "/v1/sandboxes", `{"volumes":[{"name":"a","path":"/proc"}]}`, 400,
			"invalid", "/proc"},
		"name in use":   {"POST", "/v1/sandboxes", `{"name":"box"}`, 409, "conflict", "box"},
		"not there":     {"GET", "/v1/sandboxes/sbx_nosuch", "", 404, "not_found", "sbx_nosuch"},
		"volume with /": {"POST", "/v1/volumes", `{"name":"a/b"}`, 400, "invalid", "a/b"},
		"volume ..":     {"DELETE", "/v1/volumes/%2E%2E", "", 400, "invalid", ".."},
		"long volume": {"POST", "/v1/volumes", `{"name":"` + strings.Repeat("v", 300) + `"}`, 400,
			"invalid", "vvv"},
		"no volume": {"GET", "/v1/volumes/nosuch/files/list", "", 404, "not_found", "nosuch"},
		"bad limit": {"GET", "/v1/sandboxes?limit=0", "", 400, "invalid", "limit"},
		"bad flag":  {"GET", "/v1/sandboxes?all=maybe", "", 400, "invalid", "all"},
		"bad tag":   {"GET", "/v1/sandboxes?tag=x", "", 400, "invalid", "tag"},
		"extend far": {"POST", "/v1/sandboxes/box/extend", `{"idle_timeout_seconds":1e300}`, 400, "invalid",
			"idle_timeout_seconds"},
		"extend how long": {"POST", "/v1/sandboxes/box/extend", `{"timeout_seconds":1e300}`, 400, "invalid",
			"timeout_seconds"},
		"not a WebSocket": {"GET", "/v1/run", "", 400, "invalid", "WebSocket"},
		"run detached":    {"POST", "/v1/run", `{"args":["true"],"detach":true}`, 400, "invalid", "detached"},
		"run badly":       {"POST", "/v1/run", `{"args":["true"],"sandbox":{"x":1}}`, 400, "invalid", "x"},
		"network of box":  {"POST", "/v1/sandboxes/box/network", `{"mode":"default"}`, 501, "unsupported", "network"},
		"network odd":     {"POST", "/v1/sandboxes/box/network", `{"mode":"odd"}`, 400, "invalid", "odd"},
		"network field":   {"POST", "/v1/sandboxes/box/network", `{"rules":[]}`, 400, "invalid", "rules"},
		"connect":         {"GET", "/v1/sandboxes/box/connect?port=80", "", 400, "invalid", "WebSocket"},
		"no network": {"POST", "/v1/run", `{"args":["true"],"sandbox":{"network":{"mode":"default"}}}`, 501,
			"unsupported", "network"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body := w.do(c.method, c.path, c.body, api.HeaderRequestID, "my-own.id_1")
			p := parse[api.Problem](t, body)
			if resp.StatusCode != c.status || p.Status != c.status || p.Code != c.code ||
				!strings.Contains(p.Detail, c.detail) {
				t.Errorf("%s, %+v; want %d %s with %q", resp.Status, p, c.status, c.code, c.detail)
			}
			if got := resp.Header.Get("Content-Type"); got != api.TypeProblem {
				t.Errorf("the type is %s", got)
			}
			if p.RequestID != "my-own.id_1" || resp.Header.Get(api.HeaderRequestID) != p.RequestID || p.Title == "" ||
				p.Type == "" {
				t.Errorf("the problem lacks something: %+v", p)
			}
		})
	}
}

// TestInternalsStayInside checks that an internal failure never shows its details.
// mission: 10.7, F6
func TestInternalsStayInside(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.engine.FailNext(fake.OpCreate, errors.Errorf("secret detail at /internal/path"))
	resp, body := w.do("POST", api.Sandboxes, `{}`, api.HeaderRequestID, "bad id\x7f!"[:6])
	p := parse[api.Problem](t, body)
	if resp.StatusCode != 500 || p.Code != "internal" || strings.Contains(body, "secret") || p.Stage == "" {
		t.Errorf("%s %s", resp.Status, body)
	}
	if !strings.HasPrefix(p.RequestID, "req_") {
		t.Errorf("a malformed request id was taken: %q", p.RequestID)
	}
	w.engine.FailNext(fake.OpCreate, errors.Newf(errors.Unavailable, "later"))
	_, body = w.do("POST", api.Sandboxes, `{}`)
	if p := parse[api.Problem](t, body); !p.Retryable || p.Status != 503 || p.Detail != "later" {
		t.Errorf("%s", body)
	}
}

func TestStatusesCoverEveryKind(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, kind := range errors.Kinds {
		w.engine.FailNext(fake.OpCreate, errors.Newf(kind, "planned"))
		resp, body := w.do("POST", api.Sandboxes, `{}`)
		if p := parse[api.Problem](t, body); p.Code != string(kind) || resp.StatusCode < 400 {
			t.Errorf("%s became %s %s", kind, resp.Status, body)
		}
	}
}

type event struct{ name, data string }

// events reads a whole stream of server-sent events.
func (w *world) events(path, body string) []event {
	w.t.Helper()
	resp, text := w.do("POST", path, body, "Accept", api.TypeEvents)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != api.TypeEvents {
		w.t.Fatalf("%s %s", resp.Status, text)
	}
	var all []event
	var e event
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.data = line[len("data: "):]
		case line == "" && e.name != "":
			all = append(all, e)
			e = event{}
		}
	}
	return all
}

// mission: A1, 4.3
func TestExecEvents(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	all := w.events("/v1/sandboxes/box/exec",
		`{"args":["sh","-c","printf 'h\\303'; sleep 0.05; printf '\\251!\\377'; echo e >&2; exit 4"]}`)
	var stdout, stderr []byte
	for _, e := range all {
		if e.name != api.EventStdout && e.name != api.EventStderr {
			continue
		}
		out := parse[api.Output](t, e.data)
		data := []byte(out.Data)
		if out.Encoding == "base64" {
			var err error
			if data, err = base64.StdEncoding.DecodeString(out.Data); err != nil {
				t.Fatal(err)
			}
		}
		if e.name == api.EventStdout {
			stdout = append(stdout, data...)
		} else {
			stderr = append(stderr, data...)
		}
	}
	if !bytes.Equal(stdout, []byte("hé!\xff")) || string(stderr) != "e\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	if all[0].name != api.EventStarted && all[0].name != api.EventStdout {
		t.Errorf("it begins with %+v", all[0])
	}
	last := all[len(all)-1]
	if res := parse[api.Result](t, last.data); last.name != api.EventExit || res.ReturnCode != 4 {
		t.Errorf("it ends with %+v", last)
	}
	all = w.events("/v1/sandboxes/box/exec", `{"args":["/no/such/program"]}`)
	if p := parse[api.Problem](t, all[0].data); len(all) != 1 || all[0].name != api.EventProblem ||
		p.Code != "invalid" {
		t.Errorf("a command that does not start: %+v", all)
	}
}

func TestCreateAndBuildEvents(t *testing.T) {
	t.Parallel()
	w := start(t)
	all := w.events("/v1/images", `{"base":"base","force":true}`)
	if last := all[len(all)-1]; last.name != api.EventBuilt || parse[api.Image](t, last.data).Base != "base" {
		t.Errorf("build: %+v", all)
	}
	all = w.events("/v1/images", `{"base":"nosuch"}`)
	if last := all[len(all)-1]; last.name != api.EventProblem {
		t.Errorf("a build that fails: %+v", all)
	}
	all = w.events("/v1/sandboxes", `{}`)
	if last := all[len(all)-1]; last.name != api.EventReady || parse[api.Sandbox](t, last.data).Status != "running" {
		t.Errorf("create: %+v", all)
	}
	all = w.events("/v1/sandboxes", `{"cpu":-1}`)
	if last := all[len(all)-1]; last.name != api.EventProblem {
		t.Errorf("a create that fails: %+v", all)
	}
}

// mission: A4
func TestDetach(t *testing.T) {
	t.Parallel()
	w := start(t)
	made := w.create()
	resp, body := w.do("POST", "/v1/sandboxes/box/exec",
		`{"args":["sh","-c","cat; exit 6"],"stdin":"in","detach":true}`)
	started := parse[api.Started](t, body)
	if resp.StatusCode != http.StatusAccepted || started.SandboxID != made.ID || started.ProcessID == "" {
		t.Fatalf("%s %s", resp.Status, body)
	}
	x, err := w.fleet.Attach(t.Context(), "personal", "box", started.ProcessID, engineStdio())
	if err != nil {
		t.Fatal(err)
	}
	if res, err := x.Wait(t.Context()); err != nil || res.ReturnCode != 6 {
		t.Errorf("it ended with %+v, %v", res, err)
	}
	_, body = w.do("GET", "/v1/sandboxes/box/processes", "")
	list := parse[api.List[api.Process]](t, body)
	if len(list.Data) != 1 || list.Data[0].ID != started.ProcessID || list.Data[0].Exit == nil ||
		list.Data[0].Exit.Code != 6 {
		t.Errorf("processes: %s", body)
	}
	if resp, _ := w.do("GET", "/v1/sandboxes/nosuch/processes", ""); resp.StatusCode != 404 {
		t.Errorf("processes of no sandbox: %s", resp.Status)
	}
	if resp, _ := w.do("POST", "/v1/sandboxes/nosuch/exec", `{"args":["true"],"detach":true}`); resp.StatusCode != 404 {
		t.Errorf("detached in no sandbox: %s", resp.Status)
	}
}

// TestProgramsThatDoNotStart checks that the errors of commands that cannot be started have the exit codes of shells
// and of docker: 127 for a missing program, 126 for a file that cannot be executed.
//
// mission: A3
func TestProgramsThatDoNotStart(t *testing.T) {
	t.Parallel()
	w := start(t)
	box := w.create()
	for program, code := range map[string]int{"no-such-program": 127, "/no/such/program": 127, "/": 126,
		"/etc/passwd": 126} {
		for path, body := range map[string]string{
			"/v1/run": `{"args":[%q]}`, "/v1/sandboxes/" + box.ID + "/exec": `{"args":[%q]}`,
		} {
			resp, text := w.do("POST", path, fmt.Sprintf(body, program))
			if p := parse[api.Problem](t, text); resp.StatusCode != 400 || p.ReturnCode != code ||
				!strings.Contains(p.Detail, program) {
				t.Errorf("%s of %s: %s %s; want the exit code %d", path, program, resp.Status, text, code)
			}
		}
		resp, text := w.do("POST", "/v1/sandboxes/"+box.ID+"/exec",
			fmt.Sprintf(`{"args":["sh","-c","exec %s"]}`, program))
		if res := parse[api.Result](t, text); resp.StatusCode != 200 || res.ReturnCode != code {
			t.Errorf("a shell starts %s: %s %s; want the exit code %d", program, resp.Status, text, code)
		}
	}
}

// TestBinaryOutputIsMarked checks that output that is not text arrives unchanged, in base64.
//
// mission: A3
func TestBinaryOutputIsMarked(t *testing.T) {
	t.Parallel()
	w := start(t)
	box := w.create()
	said := func(script string) string {
		body, _ := json.Marshal(map[string]any{"args": []string{"sh", "-c", script}})
		_, text := w.do("POST", "/v1/sandboxes/"+box.ID+"/exec", string(body))
		return text
	}
	if text := said(`printf '\000\377'`); !strings.Contains(text, `"stdout":"AP8="`) ||
		!strings.Contains(text, `"encoding":"base64"`) {
		t.Errorf("two bytes: %s", text)
	}
	if text := said(`printf text`); !strings.Contains(text, `"stdout":"text"`) || strings.Contains(text, "encoding") {
		t.Errorf("text: %s", text)
	}
}

// mission: A1, A3
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	w := start(t)
	_, body := w.do("POST", "/v1/run",
		`{"args":["sh","-c","echo $0 $1","a"],"env":{"A":"b"},"sandbox":{"tags":{"t":"1"}}}`)
	if res := parse[api.Result](t, body); res.Stdout != "a\n" || res.SandboxID == "" {
		t.Errorf("run: %s", body)
	}
	_, body = w.do("POST", "/v1/run", `{"args":["sleep","100"],"timeout_seconds":0.05}`)
	if res := parse[api.Result](t, body); !res.TimedOut || res.ReturnCode != 124 {
		t.Errorf("a time limit: %s", body)
	}
	if resp, body := w.do("POST", "/v1/run", `{"args":["/no/such"]}`); resp.StatusCode != 400 {
		t.Errorf("no such program: %s %s", resp.Status, body)
	}
	if resp, body := w.do("POST", "/v1/run", strings.Repeat(" ", api.MaxExec+1)); resp.StatusCode != 413 {
		t.Errorf("too large: %s %s", resp.Status, body)
	}
	if left := w.fleet.Stats().Sandboxes; len(left) != 0 && left[record.Running] != 0 {
		t.Errorf("left: %v", left)
	}
	// A sandbox that cannot be released does not affect the result. The fleet keeps trying.
	w.engine.FailNext(fake.OpDestroy, errors.Errorf("planned"))
	_, body = w.do("POST", "/v1/run", `{"args":["echo","out"]}`)
	if res := parse[api.Result](t, body); res.Stdout != "out\n" || res.ReturnCode != 0 {
		t.Errorf("not released: %s", body)
	}
	_, body = w.do("POST", "/v1/run", `{"args":["true"],"keep":true}`)
	id := parse[api.Result](t, body).SandboxID
	_, body = w.do("GET", "/v1/sandboxes/"+id, "")
	if got := parse[api.Sandbox](t, body); got.Status != "running" || got.IdleTimeoutSeconds != 0 {
		t.Errorf("kept: %s", body)
	}
}

// mission: C1
func TestArchives(t *testing.T) {
	t.Parallel()
	w := start(t)
	made := w.create()
	w.do("POST", "/v1/volumes", `{"name":"vol"}`)
	archive := tarOf(t, "dir/file", "content")
	for _, base := range []string{"/v1/volumes/vol", "/v1/sandboxes/" + made.ID} {
		if resp, body := w.do("PUT", base+"/archive?path=/in", archive); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("%s in: %s %s", base, resp.Status, body)
		}
		if resp, body := w.do("GET", base+"/archive?path=/in", ""); resp.StatusCode != 200 ||
			!strings.Contains(body, "content") ||
			resp.Header.Get("Content-Type") != api.TypeTar {
			t.Errorf("%s out: %s %q", base, resp.Status, body)
		}
		if resp, _ := w.do("GET", base+"/archive?path=/nosuch", ""); resp.StatusCode != 404 {
			t.Errorf("%s, no such path: %s", base, resp.Status)
		}
		if resp, body := w.do("PUT", base+"/archive?path=/in", tarOf(t, "../escape", "x")); resp.StatusCode != 400 {
			t.Errorf("%s, an escape: %s %s", base, resp.Status, body)
		}
	}
	_, body := w.do("GET", "/v1/volumes/vol/files/list?path=/in/dir", "")
	if list := parse[api.List[api.Entry]](t, body); len(list.Data) != 1 || list.Data[0].Name != "file" ||
		list.Data[0].Size != 7 {
		t.Errorf("list: %s", body)
	}
	if resp, _ := w.do("GET", "/v1/volumes/vol/files/list?path=/nosuch", ""); resp.StatusCode != 404 {
		t.Errorf("list of nothing: %s", resp.Status)
	}
	if resp, _ := w.do("DELETE", "/v1/volumes/vol/files?path=/in/dir", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("remove: %s", resp.Status)
	}
	if resp, _ := w.do("DELETE", "/v1/volumes/vol/files?path=/in/dir", ""); resp.StatusCode != 404 {
		t.Errorf("remove again: %s", resp.Status)
	}
	for _, path := range []string{"/files?path=x", "/archive?path=x"} {
		method := map[bool]string{true: "DELETE", false: "GET"}[strings.HasPrefix(path, "/files")]
		if resp, _ := w.do(method, "/v1/volumes/nosuch"+path, ""); resp.StatusCode != 404 {
			t.Errorf("%s of no volume: %s", path, resp.Status)
		}
	}
	if resp, _ := w.do("PUT", "/v1/volumes/nosuch/archive?path=x", archive); resp.StatusCode != 404 {
		t.Errorf("into no volume: %s", resp.Status)
	}
	_, body = w.do("GET", "/v1/volumes", "")
	if list := parse[api.List[api.Volume]](t, body); len(list.Data) != 1 || list.Data[0].Name != "vol" {
		t.Errorf("volumes: %s", body)
	}
	if resp, body := w.do("DELETE", "/v1/volumes/vol", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %s %s", resp.Status, body)
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	w := start(t)
	resp, body := w.do("POST", "/v1/images", "")
	built := parse[api.Image](t, body)
	if resp.StatusCode != http.StatusCreated || built.Base != "base" {
		t.Fatalf("build: %s %s", resp.Status, body)
	}
	_, body = w.do("GET", "/v1/images", "")
	if list := parse[api.List[api.Image]](t, body); len(list.Data) != 1 || list.Data[0].ID != built.ID {
		t.Errorf("list: %s", body)
	}
	_, body = w.do("GET", "/v1/images/base", "")
	if got := parse[api.Image](t, body); got.Digest != built.Digest {
		t.Errorf("get: %s", body)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if resp, _ := w.do(method, "/v1/images/nosuch", ""); resp.StatusCode != 404 {
			t.Errorf("%s of no image: %s", method, resp.Status)
		}
	}
	if resp, body := w.do("POST", "/v1/images", `{"base":"nosuch"}`); resp.StatusCode < 400 {
		t.Errorf("build of an unknown base: %s %s", resp.Status, body)
	}
	w.create()
	if resp, body := w.do("DELETE", "/v1/images/base", ""); resp.StatusCode != http.StatusConflict {
		t.Errorf("delete in use: %s %s", resp.Status, body)
	}
	w.do("DELETE", "/v1/sandboxes/box", "")
	if resp, body := w.do("DELETE", "/v1/images/base", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %s %s", resp.Status, body)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	if resp, body := w.do("GET", "/healthz", ""); resp.StatusCode != 200 || body != "ok\n" {
		t.Errorf("healthz: %s %q", resp.Status, body)
	}
	resp, body := w.do("GET", "/readyz", "")
	got := parse[api.Server](t, body)
	if resp.StatusCode != 200 || got.Status != "ready" || got.Version != "test" || got.Sandboxes != 1 ||
		got.Requests != 0 || got.Engine != "fake" {
		t.Errorf("readyz: %s", body)
	}
	if resp.Header.Get(api.HeaderVersion) != "test" {
		t.Errorf("the version header is %q", resp.Header.Get(api.HeaderVersion))
	}
	w.server.Stop(t.Context())
	if resp, body := w.do("GET", "/readyz", ""); resp.StatusCode != 503 ||
		parse[api.Server](t, body).Status != "stopping" {
		t.Errorf("readyz while stopping: %s %s", resp.Status, body)
	}
	if resp, body := w.do("GET", "/v1/sandboxes", ""); resp.StatusCode != 503 ||
		parse[api.Problem](t, body).Code != "unavailable" {
		t.Errorf("a request while stopping: %s %s", resp.Status, body)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	w.do("POST", "/v1/sandboxes/box/exec", `{"args":["sleep","100"],"detach":true}`)
	if resp, body := w.do("POST", "/v1/shutdown", `{"if_idle":true}`); resp.StatusCode != http.StatusConflict {
		t.Errorf("although busy: %s %s", resp.Status, body)
	}
	ended := make(chan int, 2)
	for i := range 2 { // the second one joins the first
		go func() {
			req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/v1/shutdown", nil)
			if err != nil {
				panic(err)
			}
			req.Header.Set(api.HeaderRequestID, fmt.Sprintf("shutdown-%d", i))
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				ended <- 0
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body) // the connection may just break off
			ended <- resp.StatusCode
		}()
	}
	<-w.asked
	// The audit log is closed before the answer ends, so its lines are written earlier, once for each request.
	lines := func() int { return strings.Count(w.audit.String(), `"request_id":"shutdown-`) }
	testenv.Eventually(t, "the lines of both requests", func() bool { return lines() == 2 })
	select {
	case <-ended:
		t.Error("the answer ended before the server did")
	default:
	}
	w.server.Stop(t.Context())
	if err := w.server.Close(); err != nil {
		t.Error(err)
	}
	first := <-ended
	if second := <-ended; first != http.StatusAccepted && second != http.StatusAccepted {
		t.Errorf("the answers were %d and %d", first, second)
	}
	if n := lines(); n != 2 {
		t.Errorf("%d lines of two requests:\n%s", n, w.audit.String())
	}
}

func TestIdle(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	first := w.server.Idle()
	running := make(chan struct{})
	go func() {
		defer close(running)
		w.do("POST", "/v1/sandboxes/box/exec", `{"args":["sh","-c","while [ ! -e done ]; do sleep 0.01; done"]}`)
	}()
	for w.server.Idle() != 0 {
		time.Sleep(time.Millisecond)
	}
	w.do("POST", "/v1/sandboxes/box/exec", `{"args":["touch","done"]}`)
	<-running
	for w.server.Idle() == 0 {
		time.Sleep(time.Millisecond)
	}
	if first < 0 {
		t.Errorf("idle for %v", first)
	}
}

// TestSandboxRequestIsUnderstood checks that package fleet decodes api.SandboxRequest, which clients send, without
// loss.
func TestSandboxRequestIsUnderstood(t *testing.T) {
	t.Parallel()
	sent := api.SandboxRequest{
		Image: "i", Name: "n", Tags: map[string]string{"a": "b"}, Env: map[string]string{"c": "d"},
		Secrets: []string{"s"}, Workdir: "/w", User: "u", Hostname: "h",
		Volumes: []api.Mount{{Name: "v", Path: "/p", ReadOnly: true}}, Engine: "e", Network: api.Network{Mode: "none"},
		CPU: 1.5, Memory: 2, Disk: 3, Processes: 4, Files: 5, VolumeFiles: 8, TimeoutSeconds: 6,
		IdleTimeoutSeconds: 7, Cold: true,
	}
	data, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := spec.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	want := spec.Request{
		Image: "i", Name: "n", Tags: map[string]string{"a": "b"}, Env: map[string]string{"c": "d"},
		Secrets: []string{"s"}, Workdir: "/w", User: "u", Hostname: "h",
		Volumes: []spec.Mount{{Name: "v", Path: "/p", ReadOnly: true}}, Engine: "e",
		Network: spec.Network{Mode: "none"},
		CPU:     1.5, Memory: 2, Disk: 3, Processes: 4, Files: 5, VolumeFiles: 8, TimeoutSeconds: 6,
		IdleTimeoutSeconds: 7, Cold: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func engineStdio() engine.Stdio { return engine.Stdio{Stdout: io.Discard, Stderr: io.Discard} }
