package volsync

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/remote"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// measureAfter is when a sync with a progress report begins to count its work. Most syncs have
// ended by then.
const measureAfter = time.Second

// waitAfter is the time without any answer after which a sync reports that it waits for the server.
const waitAfter = 5 * time.Second

// progress is the progress of a sync.
type progress struct {
	mu    sync.Mutex
	seen  int64            // guarded by mu; bytes of finished files, transferred or not
	parts map[string]int64 // guarded by mu; transferred bytes of unfinished files in parts, by path
	total int64            // guarded by mu; bytes of all files; 0 until they are counted
}

// part counts n more transferred bytes of a file in parts. A negative n restarts its count.
func (p *progress) part(path string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n < 0 {
		delete(p.parts, path)
		return
	}
	if p.parts == nil {
		p.parts = map[string]int64{}
	}
	p.parts[path] += n
}

// done notes that j's path is finished.
func (p *progress) done(j *job, d plan.Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.parts, j.Path)
	delete(p.parts, j.CopyTo)
	switch {
	case d == plan.Down && j.Remote != nil && j.Remote.Kind == tree.File:
		p.seen += j.Remote.BodySize()
	case d != plan.Down && j.Local != nil && j.Local.Kind == tree.File:
		p.seen += j.Local.Size
	}
}

// shown returns the current statistics with the progress.
func (r *run) shown() Stats {
	stats := r.finished()
	r.progress.mu.Lock()
	defer r.progress.mu.Unlock()
	stats.Seen, stats.Total = r.progress.seen, r.progress.total
	for _, n := range r.progress.parts {
		stats.Seen += n
	}
	if stats.Total > 0 {
		stats.Seen = min(stats.Seen, stats.Total) // files only on the other side are not in it, and files grow
	}
	if host, since := r.b.Waiting(); since >= cmp.Or(r.o.waitAfter, waitAfter) {
		stats.Waiting = "S3 at " + host
	}
	return stats
}

// measure counts the work: for Down, the files of the manifest, otherwise those of the volume.
// Without a manifest, the work of a Down is unknown until its end.
func (r *run) measure(ctx context.Context, st *state.State, remote *remote.Contents) {
	n := int64(0)
	if r.o.Direction == plan.Down {
		file := remote.File
		if remote.Known {
			file = st.File(state.Entries)
		}
		if file == "" || remote.Healed {
			return
		}
		for e, err := range manifest.ReadFile(file) {
			if err != nil || ctx.Err() != nil {
				return
			}
			if e.Kind == tree.File && r.concerns(nil, e) {
				n += e.BodySize()
			}
		}
	} else {
		for s := range r.t.Scan(ctx) {
			if s.Err == nil && s.Kind == tree.File && !tree.Temporary(s.Path) && r.concerns(s.Entry, nil) {
				n += s.Size
			}
		}
	}
	if ctx.Err() != nil {
		return
	}
	r.progress.mu.Lock()
	defer r.progress.mu.Unlock()
	r.progress.total = n
}

// report calls Progress until the returned function is called. It begins before the first request. measure yields the
// function that counts the work, once that is possible.
func (r *run) report(ctx context.Context, measure <-chan func(context.Context)) func() {
	if r.o.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	end := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		start := time.Now()
		for {
			select {
			case <-end:
				r.o.Progress(r.shown())
				return
			case <-tick.C:
				r.o.Progress(r.shown())
			}
			if time.Since(start) < measureAfter {
				continue
			}
			select {
			case count := <-measure:
				tasks.Go(func() { count(ctx) })
			default:
			}
		}
	})
	return func() {
		cancel()
		close(end)
		tasks.Wait()
	}
}
