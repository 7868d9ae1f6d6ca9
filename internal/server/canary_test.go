package server_test

import (
	"context"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server"
)

// canary is an error that clients must never see: it comes from another library and contains a path and a secret.
func canary() error {
	return errors.Wrapf(&fs.PathError{Op: "open", Path: "/var/lib/harvest/CANARY",
		Err: errors.Errorf("password=CANARY")}, "reading CANARY")
}

// The parts below fail in every possible way, with the canary.
type (
	brokenImages  struct{ image.Builder }
	brokenVolumes struct{ volume.Provider }
	brokenKeys    struct{ account.Store }
	brokenReplays struct{ account.ReplayStore }
)

func (brokenImages) Build(context.Context, image.Spec, image.BuildOptions) (image.Image, error) {
	return image.Image{}, canary()
}
func (brokenImages) List(context.Context) ([]image.Image, error) { return nil, canary() }
func (brokenVolumes) Create(context.Context, string) (volume.Volume, error) {
	return nil, canary()
}
func (brokenVolumes) Open(context.Context, string) (volume.Volume, error) { return nil, canary() }
func (brokenVolumes) List(context.Context) ([]volume.Info, error)         { return nil, canary() }
func (brokenVolumes) Delete(context.Context, string) error                { return canary() }
func (brokenKeys) InsertKey(context.Context, account.Key) error           { return canary() }
func (brokenKeys) KeyByHash(context.Context, string) (account.Key, error) {
	return account.Key{}, canary()
}
func (brokenKeys) Keys(context.Context, string, account.Kind) ([]account.Key, error) {
	return nil, canary()
}
func (brokenReplays) BeginReplay(context.Context, account.Replay, time.Time) (account.Replay, bool, error) {
	return account.Replay{}, false, canary()
}

// TestInternalsNeverLeave checks that internal errors never reach clients, whichever layer they come from.
// mission: 10.6, 10.7, F6
func TestInternalsNeverLeave(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	broken := start(t, func(o *server.Options) {
		o.Images, o.Volumes, o.Keys, o.Replays = brokenImages{}, brokenVolumes{}, account.NewRing(brokenKeys{}),
			brokenReplays{}
	})
	broken.create()
	check := func(what string, resp *http.Response, body string) {
		t.Helper()
		if resp.StatusCode != http.StatusInternalServerError && resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", what, resp.Status, body)
		}
		if strings.Contains(body, "CANARY") || strings.Contains(body, "/var/lib") ||
			!strings.Contains(body, `"internal"`) || !strings.Contains(body, "req_") {
			t.Errorf("%s: %s", what, body)
		}
	}
	const box = "/v1/sandboxes/box"
	for _, c := range []struct {
		op                 fake.Op
		method, path, body string
		header             []string
	}{
		{fake.OpCreate, "POST", "/v1/sandboxes", `{}`, nil},
		{fake.OpCreate, "POST", "/v1/sandboxes", `{}`, []string{"Accept", api.TypeEvents}},
		{fake.OpCreate, "POST", "/v1/run", `{"args":["true"]}`, nil},
		{fake.OpCreate, "POST", "/api/modal/sandbox", `{}`, nil},
		{fake.OpStart, "POST", box + "/exec", `{"args":["true"]}`, nil},
		{fake.OpStart, "POST", box + "/exec", `{"args":["true"]}`, []string{"Accept", api.TypeEvents}},
		{fake.OpStart, "POST", box + "/exec", `{"args":["true"],"detach":true}`, nil},
		{fake.OpStart, "POST", box + "/exec", `{"args":["true"]}`, []string{"Idempotency-Key", "canary"}},
		{fake.OpCopyIn, "PUT", box + "/archive?path=/", "x", nil},
		{fake.OpCopyOut, "GET", box + "/archive?path=/", "", nil},
		{fake.OpFiles, "GET", box + "/files/list?path=/", "", nil},
		{fake.OpFiles, "GET", box + "/files/watch?path=/", "", nil},
		{fake.OpFiles, "PUT", box + "/files?path=/x", "x", nil},
	} {
		w.engine.FailNext(c.op, canary())
		resp, body := w.do(c.method, c.path, c.body, c.header...)
		check(c.method+" "+c.path, resp, body)
	}
	for _, c := range [][3]string{
		{"GET", "/v1/images", ""}, {"POST", "/v1/images", `{"base":"other"}`}, {"GET", "/v1/images/base", ""},
		{"DELETE", "/v1/images/base", ""},
		{"GET", "/v1/volumes", ""}, {"POST", "/v1/volumes", `{"name":"v"}`}, {"DELETE", "/v1/volumes/v", ""},
		{"GET", "/v1/volumes/v/archive", ""},
		{"GET", "/v1/keys", ""}, {"POST", "/v1/keys", `{"name":"k"}`}, {"DELETE", "/v1/keys/k", ""},
	} {
		resp, body := broken.do(c[0], c[1], c[2])
		check(c[0]+" "+c[1], resp, body)
	}
	resp, body := broken.do("POST", "/v1/volumes", `{"name":"v"}`, "Idempotency-Key", "k")
	check("the replays", resp, body)
	resp, body = broken.stranger().do("GET", "/v1/account", "", "Authorization", "Bearer hv_"+strings.Repeat("a", 52))
	check("a key", resp, body)
	// As messages, too.
	w.engine.FailNext(fake.OpStart, canary())
	conn, _, err := websocket.Dial(t.Context(), w.url+box+"/exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"args":["true"]}`)); err != nil {
		t.Fatal(err)
	}
	_, msg, err := conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check("a stream", &http.Response{StatusCode: 500}, string(msg))
	w.engine.FailNext(fake.OpDestroy, canary())
	resp, body = w.do("DELETE", box, "")
	check("DELETE", resp, body)
	if _, body := w.do("GET", "/v1/sandboxes/"+w.last, ""); strings.Contains(body, "CANARY") {
		t.Errorf("the record: %s", body)
	}
}
