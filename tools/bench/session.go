package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// sessionsAtOnce is how many sessions have a turn at the same time.
const sessionsAtOnce = 50

// benchSession measures sessions with the scripted agent, which needs no model. The figures therefore cover the
// sandbox, the repository, and the way from the agent to the client.
func benchSession(ctx context.Context, l *lab, r *recorder) error {
	for _, c := range []struct {
		name, pool string
		most       float64
	}{{"cold", "0", 3000}, {"warm", "1", 1000}} {
		m := r.measure(c.name+": create, until the agent's first event", "ms")
		m.Aim = &Aim{AtMost: c.most}
		err := withDaemon(ctx, l, "session-"+c.name, func(d *daemon) error {
			return r.turns(ctx, r.count(3, 20), []*Measure{m}, side{harvest, func(ctx context.Context) (sample, error) {
				if c.pool != "0" {
					if err := pause(ctx, 3*time.Second); err != nil { // until the pool is full
						return nil, err
					}
				}
				took, id, err := d.firstWord(ctx)
				if err != nil {
					return nil, err
				}
				return sample{m.Name: took}, d.EndSession(ctx, id)
			}})
		}, "HARVEST_POOL="+c.pool)
		if err != nil {
			return err
		}
	}
	if err := benchAsked(ctx, l, r); err != nil {
		return err
	}
	if err := withDaemon(ctx, l, "session-spare", func(d *daemon) error { return r.spareSessions(ctx, d) },
		"HARVEST_POOL=1", "HARVEST_AGENTS_SPARES=1"); err != nil {
		return err
	}
	return withDaemon(ctx, l, "session-many", func(d *daemon) error { return r.manySessions(ctx, d) }, "HARVEST_POOL=0")
}

// withDaemon runs work with a server of its own.
func withDaemon(ctx context.Context, l *lab, name string, work func(d *daemon) error, settings ...string) error {
	data := filepath.Join(l.dir, name)
	if err := ownImage(l.opts.images, filepath.Join(data, "images"), "base"); err != nil {
		return errors.Wrapf(err, "make a data directory")
	}
	return withServer(ctx, l, data, work, settings...)
}

// withSandbox runs work with a server that has no pool, its data directory, and a sandbox.
func withSandbox(ctx context.Context, l *lab, name string, work func(d *daemon, data, sandbox string) error) error {
	data, err := l.dataDir(name)
	if err != nil {
		return err
	}
	return withServer(ctx, l, data, func(d *daemon) error {
		sb, err := d.CreateSandbox(ctx, api.SandboxRequest{}, nil)
		if err != nil {
			return err
		}
		return work(d, data, sb.ID)
	}, "HARVEST_POOL=0")
}

// withServer runs work with a server of a data directory, and ends it with its sandboxes.
func withServer(ctx context.Context, l *lab, data string, work func(d *daemon) error, settings ...string) (err error) {
	d, err := serve(ctx, l.opts.harvest, data, settings...)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.endAll(context.WithoutCancel(ctx)), d.stop())
	}()
	return work(d)
}

// ownImage adds an image of another library to a new or existing one, for servers that add images to theirs.
func ownImage(from, to, name string) error {
	names := filepath.Join(to, ".names")
	id, err := os.Readlink(filepath.Join(from, ".names", name))
	if err != nil {
		return err
	}
	id = filepath.Base(id)
	files, err := os.ReadDir(filepath.Join(from, id))
	err = errors.Join(err, os.MkdirAll(names, 0o700), os.Mkdir(filepath.Join(to, id), 0o700),
		os.Symlink(id, filepath.Join(names, name)))
	for _, f := range files {
		if f.Type().IsRegular() {
			err = errors.Join(err, link(filepath.Join(from, id, f.Name()), filepath.Join(to, id, f.Name())))
		}
	}
	return err
}

// link hard-links a file, or, across file systems, makes a symbolic link to it.
func link(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	return os.Symlink(from, to)
}

// firstWord creates a session and returns the milliseconds until its agent's first output, and the session's
// id.
func (d *daemon) firstWord(ctx context.Context) (took float64, id string, err error) {
	begin := time.Now()
	made, err := d.CreateSession(ctx, api.SessionRequest{Agent: "scripted", Prompt: "/say here I am\n/sleep 5"})
	if err != nil {
		return 0, "", err
	}
	for e, err := range d.Events(ctx, client.Follow{Stream: made.ID}) {
		switch {
		case err != nil:
			return 0, made.ID, err
		case e.Type == "agent.ready":
			return float64(time.Since(begin).Microseconds()) / 1000, made.ID, nil
		case e.Type == "session.ended":
			return 0, made.ID, errors.Errorf("the session has ended: %s", e.Data)
		}
	}
	return 0, made.ID, errors.Errorf("the events have ended")
}

// spareSessions measures sessions that were made ahead: each waits when it is asked for.
func (r *recorder) spareSessions(ctx context.Context, d *daemon) error {
	m := r.measure("made ahead: create, until the agent's first event", "ms")
	m.Aim = &Aim{AtMost: 300}
	if err := d.WarmSession(ctx, api.SessionRequest{Agent: "scripted"}); err != nil {
		return err
	}
	return r.turns(ctx, r.count(3, 20), []*Measure{m}, side{harvest, func(ctx context.Context) (sample, error) {
		for waiting := 0; waiting == 0; {
			if err := pause(ctx, time.Second); err != nil {
				return nil, err
			}
			info, err := d.Server(ctx)
			if err != nil {
				return nil, err
			}
			waiting = info.Spares
		}
		took, id, err := d.firstWord(ctx)
		if err != nil {
			return nil, err
		}
		return sample{m.Name: took}, d.EndSession(ctx, id)
	}})
}

// manySessions runs a turn in many sessions at once.
func (r *recorder) manySessions(ctx context.Context, d *daemon) error {
	each := r.measure(fmt.Sprintf("%d at once: create, until the agent's first event", sessionsAtOnce), "ms")
	each.Aim = &Aim{AtMost: 12000}
	last := r.measure(fmt.Sprintf("the last of %d at once", sessionsAtOnce), "ms")
	last.Aim = &Aim{AtMost: 25000}
	rss := r.measure(fmt.Sprintf("memory of the server with %d sessions in a turn", sessionsAtOnce), "MiB")
	rss.Aim = &Aim{AtMost: 300}
	before, err := d.measured(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	var failed error
	slowest := 0.0
	for range sessionsAtOnce {
		running.Go(func() {
			took, _, err := d.firstWord(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				r.fail(each, harvest, err)
				failed = err
				return
			}
			each.add(harvest, took)
			slowest = max(slowest, took)
		})
	}
	running.Wait()
	last.add(harvest, slowest)
	after, err := d.measured(ctx)
	if err != nil {
		return err
	}
	rss.add(harvest, after.RSS)
	r.note("the memory before was %.1f MiB; all sessions begin in the same moment", before.RSS)
	return failed
}
