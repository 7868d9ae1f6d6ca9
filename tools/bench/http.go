package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/store"
)

// The records and sandboxes of P14's server.
const (
	heldRecords = 10_000 // of ended sandboxes
	heldIdle    = 100    // sandboxes that have not ended
)

// personal is the account whose sandboxes a server's own key can see.
const personal = "personal"

// benchHTTPExec is P4 through HTTP: exec over TCP, with a key.
func benchHTTPExec(ctx context.Context, l *lab, r *recorder) error {
	return withSandbox(ctx, l, "http", func(d *daemon, _, sb string) error { return r.httpExec(ctx, l, d, sb) })
}

func (r *recorder) httpExec(ctx context.Context, l *lab, d *daemon, sb string) (err error) {
	m := r.measure("until it has ended", "ms")
	m.Aim = &Aim{Peer: "runc", AtMost: 0.35}
	sides := []side{{harvest, func(ctx context.Context) (sample, error) {
		return timed(m.Name, func() error {
			res, err := d.Exec(ctx, sb, api.ExecRequest{Args: []string{"true"}})
			if err == nil && res.ReturnCode != 0 {
				err = errors.Errorf("true ended with %d: %s", res.ReturnCode, res.Reason)
			}
			return err
		})
	}}}
	sides, remove, err := r.execIn(ctx, l.runc, m.Name, sides)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	return r.turns(ctx, r.count(10, 100), []*Measure{m}, sides...)
}

// benchList is P14. It uses sandboxes of the fake engine, because a list does not depend on the engine.
func benchList(ctx context.Context, l *lab, r *recorder) error {
	data := filepath.Join(l.dir, "list")
	if err := os.Mkdir(data, 0o700); err != nil {
		return errors.Wrapf(err, "make a data directory")
	}
	if err := fillRecords(ctx, data); err != nil {
		return err
	}
	return withServer(ctx, l, data, func(d *daemon) error { return r.lists(ctx, l, d) }, "HARVEST_ENGINE=fake",
		"HARVEST_POOL=0")
}

func (r *recorder) lists(ctx context.Context, l *lab, d *daemon) error {
	for range heldIdle {
		if _, err := d.CreateSandbox(ctx, api.SandboxRequest{}, nil); err != nil {
			return err
		}
	}
	rss := r.measure("memory of the server with 10,000 records and 100 sandboxes", "MiB")
	rss.Aim = &Aim{AtMost: 150}
	before, err := d.measured(ctx)
	if err != nil {
		return err
	}
	long := 10 * time.Second
	if l.opts.short {
		long = time.Second
	}
	for _, q := range []struct{ name, query string }{{"GET /v1/sandboxes", "?limit=20"},
		{"GET /v1/sandboxes?all=true", "?all=true&limit=20"}} {
		perSecond, p99 := r.measure(q.name+", requests", "/s"), r.measure(q.name+", p99", "ms")
		perSecond.Aim, p99.Aim = &Aim{AtLeast: 2000}, &Aim{AtMost: 50}
		for range r.count(1, 3) {
			n, took, err := d.hammer(ctx, api.Sandboxes+q.query, long)
			if err != nil {
				return err
			}
			perSecond.add(harvest, float64(n)/long.Seconds())
			p99.add(harvest, took)
		}
	}
	after, err := d.measured(ctx)
	if err != nil {
		return err
	}
	rss.add(harvest, max(before.RSS, after.RSS))
	r.note("the clients, 16 connections, run on the same cores; the memory before was %.1f MiB", before.RSS)
	return nil
}

// fillRecords creates a database with records of ended sandboxes.
func fillRecords(ctx context.Context, data string) (err error) {
	db, err := store.Open(ctx, filepath.Join(data, "harvest.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	begin := time.Now().Add(-24 * time.Hour).UTC()
	for n := range heldRecords {
		at := begin.Add(time.Duration(n) * time.Second)
		if err := db.Sandboxes().Put(ctx, record.Sandbox{
			ID: fmt.Sprintf("sbx_%026d", n), Account: personal, Name: fmt.Sprintf("ended-%d", n),
			Status: record.Terminated, Engine: "fake", Image: "base",
			Created: at, Started: at, Ended: at.Add(time.Second), Expires: at.Add(time.Hour), LastUsed: at,
			Stages: []record.Stage{}, Tags: map[string]string{"n": fmt.Sprint(n)},
		}); err != nil {
			return err
		}
	}
	return nil
}

// hammer requests path over 16 connections for the given time. It returns the number of answers and the p99 of
// their times in ms.
func (d *daemon) hammer(ctx context.Context, path string, long time.Duration) (n int, p99 float64, err error) {
	const connections = 16
	transport := &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}
	defer transport.CloseIdleConnections()
	times := make([][]float64, connections)
	errs := make([]error, connections)
	var all sync.WaitGroup
	end := time.Now().Add(long)
	for i := range connections {
		all.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				begin := time.Now()
				errs[i] = d.ask(ctx, transport, path)
				times[i] = append(times[i], ms(time.Since(begin)))
			}
		})
	}
	all.Wait()
	sorted := slices.Sorted(slices.Values(slices.Concat(times...)))
	return len(sorted), percentile(sorted, 99), errors.Join(errs...)
}

func (d *daemon) ask(ctx context.Context, transport *http.Transport, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+path, nil)
	if err != nil {
		return errors.Wrapf(err, "ask")
	}
	req.Header.Set("Authorization", "Bearer "+d.key)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return errors.Wrapf(err, "ask")
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Errorf("the answer is %s, %v", resp.Status, err)
	}
	return nil
}

func makeDir(dir string) error { return errors.Wrapf(os.Mkdir(dir, 0o700), "make a data directory") }
