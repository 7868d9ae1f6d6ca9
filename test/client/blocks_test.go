package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// cutting is a listener whose connections break after varying numbers of bytes.
type cutting struct {
	net.Listener
	step, span int64 // how they differ
	n          atomic.Int64
}

func (c *cutting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, left: 400 + c.n.Add(1)*c.step%c.span}, nil
}

type cutConn struct {
	net.Conn
	left int64 // only the server's goroutine of this connection writes
}

func (c *cutConn) Write(p []byte) (int, error) {
	if int64(len(p)) <= c.left {
		c.left -= int64(len(p))
		return c.Conn.Write(p)
	}
	n, _ := c.Conn.Write(p[:c.left])
	c.left = 0
	c.Close()
	return n, net.ErrClosed
}

// blocks is a server with secrets, schedules and events, and a client of it.
type blocks struct {
	*client.Client
	events *event.Journal
}

func startBlocks(t *testing.T, wrap func(net.Listener) net.Listener) *blocks {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db := testdb.Open(t)
	eng, err := fake.Open(t.TempDir(), fake.Options{})
	must(err)
	fleet, err := fleet.Open(ctx, fleet.Options{Engine: eng, Store: db.Sandboxes()})
	must(err)
	vault, err := secret.Open(ctx, secret.Options{Store: db.Secrets(),
		KeyFile: filepath.Join(t.TempDir(), "key")})
	must(err)
	schedules, err := schedule.Open(ctx, schedule.Options{Store: db.Schedules(), Kinds: map[string]schedule.Func{
		"work": func(_ context.Context, job schedule.Job) (any, error) { return job.Args, nil },
	}})
	must(err)
	b := &blocks{events: event.Open(ctx, event.Options{Store: db.Events(), Window: 50})}
	srv := server.New(ctx, server.Options{
		Fleet: fleet, Images: eng.Images(), Volumes: eng.Volumes(), Engine: "fake", Version: "1", Secrets: vault,
		Schedules: schedules, Events: b.events, Replays: db.Replays(),
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	served := make(chan error, 1)
	go func() { served <- srv.ServeLocal(wrap(l)) }()
	b.Client, err = client.At("http://"+l.Addr().String(), "")
	must(err)
	t.Cleanup(func() {
		b.Close()
		if err := errors.Join(srv.Close(), <-served, schedules.Close(ctx), fleet.Close(ctx), b.events.Close(ctx),
			eng.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

func whole(l net.Listener) net.Listener { return l }

// mission: F4, E10
func TestSecrets(t *testing.T) {
	t.Parallel()
	b := startBlocks(t, whole)
	made, err := b.SetSecret(t.Context(),
		api.SecretRequest{Name: "s", Pairs: map[string]string{"A": "client-secret-value"}})
	if err != nil || made.Name != "s" {
		t.Fatalf("%+v, %v", made, err)
	}
	all, err := b.Secrets(t.Context())
	if err != nil || len(all) != 1 || strings.Contains(fmt.Sprint(all), "client-secret") {
		t.Errorf("%+v, %v", all, err)
	}
	if found, err := b.Secret(t.Context(), "s"); err != nil || fmt.Sprint(found.Keys) != "[A]" {
		t.Errorf("%+v, %v", found, err)
	}
	if done, err := b.Rekey(t.Context()); err != nil || done.Secrets != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	if err := b.DeleteSecret(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	if _, err := b.Secret(t.Context(), "s"); !errors.Is(err, errors.NotFound) {
		t.Errorf("%v, want NotFound", err)
	}
}

// mission: F8, E10
func TestSchedules(t *testing.T) {
	t.Parallel()
	b := startBlocks(t, whole)
	made, err := b.SetSchedule(t.Context(), api.ScheduleRequest{Name: "s", Kind: "work", Cron: "@yearly",
		Args: json.RawMessage(`{"a":1}`)})
	if err != nil || made.Next.IsZero() {
		t.Fatalf("%+v, %v", made, err)
	}
	if paused, err := b.PauseSchedule(t.Context(), "s"); err != nil || !paused.Paused {
		t.Errorf("%+v, %v", paused, err)
	}
	if resumed, err := b.ResumeSchedule(t.Context(), "s"); err != nil || resumed.Paused {
		t.Errorf("%+v, %v", resumed, err)
	}
	run, err := b.StartSchedule(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	ended, err := b.WaitScheduleRun(t.Context(), run)
	if err != nil || ended.Status != "succeeded" || string(ended.Output) != `{"a":1}` {
		t.Errorf("%+v, %v", ended, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.WaitScheduleRun(ctx, run); errors.KindOf(err) != errors.Canceled {
		t.Errorf("%v, want Canceled", err)
	}
	run.ID = "run_none"
	if _, err := b.WaitScheduleRun(t.Context(), run); !errors.Is(err, errors.NotFound) {
		t.Errorf("%v, want NotFound", err)
	}
	if all, err := b.Schedules(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := b.DeleteSchedule(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	if _, err := b.Schedule(t.Context(), "s"); !errors.Is(err, errors.NotFound) {
		t.Errorf("%v, want NotFound", err)
	}
}

// Connections break off in the middle of anything, and readers fall behind; nothing is lost, and nothing comes twice.
// mission: E10, F1
func TestEventsThroughBrokenConnections(t *testing.T) {
	t.Parallel()
	b := startBlocks(t, func(l net.Listener) net.Listener { return &cutting{Listener: l, step: 137, span: 1900} })
	const total = 300
	stream := event.AccountStream(account.Personal)
	published := make(chan error, 1)
	go func() {
		for n := range total {
			if err := b.events.Publish(t.Context(),
				event.Draft{Stream: stream, Type: "x", Data: map[string]int{"n": n + 1}}); err != nil {
				published <- err
				return
			}
		}
		published <- nil
	}()
	last := int64(0)
	for e, err := range b.Events(t.Context(), client.Follow{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.ID != last+1 || e.Type != "x" || string(e.Data) != fmt.Sprintf(`{"n":%d}`, e.ID) {
			t.Fatalf("after %d comes %d %s %s", last, e.ID, e.Type, e.Data)
		}
		if last = e.ID; last == total {
			break
		}
	}
	if err := <-published; err != nil || last != total {
		t.Errorf("%d events, %v", last, err)
	}
}

func TestEventsFromSomewhere(t *testing.T) {
	t.Parallel()
	b := startBlocks(t, whole)
	for n := range 5 {
		if err := b.events.Publish(t.Context(), event.Draft{Stream: event.AccountStream(account.Personal), Type: "x",
			Data: n}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		f    client.Follow
		want string
	}{"all": {client.Follow{}, "1"}, "after": {client.Follow{After: 3}, "4"}, "tail": {client.Follow{Tail: 1}, "5"}} {
		for e, err := range b.Events(t.Context(), c.f) {
			if err != nil || fmt.Sprint(e.ID) != c.want {
				t.Errorf("%s: %d, %v, want %s", name, e.ID, err, c.want)
			}
			break
		}
	}
	for name, c := range map[string]struct {
		f    client.Follow
		kind errors.Kind
	}{"no sandbox": {client.Follow{Stream: "none"}, errors.NotFound},
		"no such id": {client.Follow{After: 9}, errors.Invalid}} {
		var got []errors.Kind
		for _, err := range b.Events(t.Context(), c.f) {
			got = append(got, errors.KindOf(err))
		}
		if len(got) != 1 || got[0] != c.kind {
			t.Errorf("%s: %v, want %s", name, got, c.kind)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var end error
	for e, err := range b.Events(ctx, client.Follow{Tail: 1}) {
		if end = err; err == nil && e.ID == 5 {
			cancel()
		}
	}
	if !errors.Is(end, errors.Canceled) {
		t.Errorf("%v, want Canceled", end)
	}
}
