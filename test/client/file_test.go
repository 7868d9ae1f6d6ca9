package client_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// mission: E10
func TestSingleFiles(t *testing.T) {
	t.Parallel()
	w := start(t)
	ctx := t.Context()
	if _, err := w.CreateSandbox(ctx, api.SandboxRequest{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	made, err := w.WriteFile(ctx, "box", "/dir/file", 0o700, 5, strings.NewReader("hello, and more"))
	if err != nil || made.Size != 5 || made.Mode&0o777 != 0o700 {
		t.Fatalf("%+v, %v", made, err)
	}
	for want, part := range map[string][2]int64{"hello": {0, -1}, "llo": {2, -1}, "ell": {1, 3}} {
		r, err := w.ReadFile(ctx, "box", "/dir/file", part[0], part[1])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || string(got) != want {
			t.Errorf("%v: %q, %v", part, got, err)
		}
		r.Close()
	}
	if _, err := w.ReadFile(ctx, "box", "/dir/file", 0, 0); errors.KindOf(err) != errors.Invalid {
		t.Errorf("nothing: %v", err)
	}
	if _, err := w.WriteFileIf(ctx, "box", "/dir/file", 0, 1, strings.NewReader("x"),
		client.Condition{New: true}); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a file that exists is created: %v", err)
	}
	now, err := w.WriteFileIf(ctx, "box", "/dir/file", 0, 1, strings.NewReader("x"), client.Condition{ETag: made.ETag})
	if err != nil || now.ETag == made.ETag {
		t.Errorf("with its ETag: %+v, %v", now, err)
	}
	if err := w.RemoveFileIf(ctx, "box", "/dir/file", false,
		client.Condition{ETag: made.ETag}); errors.KindOf(err) != errors.Conflict {
		t.Errorf("removed with an old ETag: %v", err)
	}
	if _, err := w.WriteFile(ctx, "box", "/dir/empty", 0, 0, strings.NewReader("")); err != nil {
		t.Error(err)
	}
	if _, err := w.MakeDirectory(ctx, "box", api.MkdirRequest{Path: "/dir/sub/deep", Parents: true}); err != nil {
		t.Error(err)
	}
	if moved, err := w.MoveFile(ctx, "box", api.MoveRequest{From: "/dir/empty", To: "/dir/sub/moved"}); err != nil ||
		moved.Path != "/dir/sub/moved" {
		t.Errorf("%+v, %v", moved, err)
	}
	if list, err := w.ListFiles(ctx, "box", "/dir"); err != nil || len(list) != 2 || list[0].Name != "file" {
		t.Errorf("%+v, %v", list, err)
	}
	if found, err := w.StatFile(ctx, "box", "/dir/sub", true); err != nil || found.Kind != "directory" {
		t.Errorf("%+v, %v", found, err)
	}
	stop := errors.Errorf("enough")
	err = w.WatchFiles(ctx, "box", "/dir", true, func(c api.FileChange) error {
		switch {
		case c.Kind == "ready":
			return w.RemoveFile(ctx, "box", "/dir/sub", true)
		case c.Kind == "removed" && strings.HasSuffix(c.Path, "dir/sub"):
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) {
		t.Errorf("watch: %v", err)
	}
	if err := w.WatchFiles(ctx, "box", "/none", false,
		func(api.FileChange) error { return nil }); errors.KindOf(err) != errors.NotFound {
		t.Errorf("watch nothing: %v", err)
	}
}

// mission: A7, E10
func TestAServerElsewhere(t *testing.T) {
	t.Parallel()
	w := start(t)
	db := testdb.Open(t)
	ring := account.NewRing(db.Keys())
	s := server.New(context.WithoutCancel(t.Context()), server.Options{
		Fleet: w.fleet, Images: w.engine.Images(), Volumes: w.engine.Volumes(), Keys: ring,
		Replays: db.Replays(), Version: "test",
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	_, secret, err := ring.Create(t.Context(), account.Local(), account.Request{Name: "a", Role: account.Admin})
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	c, err := client.At(url+"/", secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if self, err := c.Self(t.Context()); err != nil || self.Account != "personal" {
		t.Errorf("%+v, %v", self, err)
	}
	made, err := c.CreateKey(t.Context(), api.KeyRequest{Name: "b"})
	if err != nil || !strings.HasPrefix(made.Secret, "hv_") {
		t.Errorf("%+v, %v", made.Key, err)
	}
	if keys, err := c.Keys(t.Context(), true); err != nil || len(keys) != 2 {
		t.Errorf("%v, %v", keys, err)
	}
	if link, err := c.SignInLink(t.Context()); err != nil || !strings.HasPrefix(link, url+"/sign-in?token=hvl_") {
		t.Errorf("%s, %v", link, err)
	}
	p, err := c.Run(t.Context(), api.RunRequest{ExecRequest: api.ExecRequest{Args: []string{"echo", "hi"}}},
		client.Streams{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ReturnCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if err := c.RevokeKey(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Self(t.Context()); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("revoked: %v", err)
	}
	for _, bad := range []string{"", "127.0.0.1", "ftp://x", "http://", "http://u:p@x", "http://x/path", "http://x?q",
		"http://%zz"} {
		if _, err := client.At(bad, ""); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := client.At(url, "a b"); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a key with a space: %v", err)
	}
	none, err := client.At("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Self(t.Context()); errors.KindOf(err) != errors.Unavailable ||
		!strings.Contains(errors.Message(err), "no server answers at") {
		t.Errorf("nobody there: %v", err)
	}
}
