package modal

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// watchOp is a request for the changes below a path.
type watchOp struct {
	Path      string    `json:"path"`
	Recursive bool      `json:"recursive"`
	Filter    *[]string `json:"filter"` // nil: everything
	Timeout   *float64  `json:"timeout_secs"`
}

// moveWait is how long to wait for the second half of a move.
const moveWait = 10 * time.Millisecond

type watchEvent struct {
	Type  string   `json:"event_type"`
	Paths []string `json:"paths"`
}

// watch reports changes until the time limit, or until the client closes the input.
func (w *fileWork) watch(ctx context.Context, op watchOp) error {
	if op.Timeout != nil && *op.Timeout <= 0 {
		_, err := w.look(ctx, op.Path, true)
		return w.unlessNil(ctx, op.Path, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if op.Timeout != nil {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, time.Duration(min(*op.Timeout, 1e6)*float64(time.Second)))
		defer stop()
	}
	go func() { // the input carries nothing but its end
		_, _ = io.Copy(io.Discard, w.c.in)
		cancel()
	}()
	return w.follow(ctx, cancel, op, func(kind string, paths ...string) {
		if op.Filter == nil || slices.Contains(*op.Filter, kind) {
			_ = w.answer(watchEvent{kind, paths}) // best effort: the disk may be full
		}
	})
}

// follow passes changes to say until ctx ends. It calls cancel when the engine reports no more.
func (w *fileWork) follow(ctx context.Context, cancel func(), op watchOp, say func(kind string,
	paths ...string)) error {
	lines, out := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		err := w.b.s.opts.Fleet.Files(ctx, w.b.account, w.ref, tarfs.Request{Op: tarfs.OpWatch, Path: op.Path,
			Recursive: op.Recursive}, out)
		out.CloseWithError(io.EOF)
		failed <- err
	}()
	tell(lines, say)
	_ = lines.Close()
	cancelled := ctx.Err() != nil
	cancel()
	if err := <-failed; err != nil && !cancelled && !errors.Is(err, context.Canceled) {
		return w.explain(context.WithoutCancel(ctx), op.Path, err)
	}
	return nil
}

// tell passes changes to say and joins the halves of a move.
func tell(lines io.Reader, say func(kind string, paths ...string)) {
	changes := make(chan tarfs.Change)
	go func() {
		defer close(changes)
		scan := bufio.NewScanner(lines)
		for scan.Scan() {
			var c tarfs.Change
			if json.Unmarshal(scan.Bytes(), &c) == nil {
				changes <- c
			}
		}
	}()
	var half *tarfs.Change
	flush := func() {
		if half != nil {
			say("RenameFrom", half.Path)
			half = nil
		}
	}
	for {
		var late <-chan time.Time
		if half != nil {
			late = time.After(moveWait)
		}
		select {
		case c, ok := <-changes:
			switch {
			case !ok:
				flush()
				return
			case half != nil && c.Kind == tarfs.Created && c.Cookie == half.Cookie:
				say("Rename", half.Path, c.Path)
				half = nil
			default:
				flush()
				if half = one(c, say); half != nil {
					half = &c
				}
			}
		case <-late:
			flush()
		}
	}
}

// one reports a self-contained change. It returns a change that may be the first half of a move.
func one(c tarfs.Change, say func(string, ...string)) *tarfs.Change {
	switch {
	case c.Kind == tarfs.Removed && c.Cookie != 0:
		return &c
	case c.Kind == tarfs.Created && c.Cookie != 0:
		say("RenameTo", c.Path)
	case c.Kind == tarfs.Created:
		say("Create", c.Path)
	case c.Kind == tarfs.Changed:
		say("Modify", c.Path)
	case c.Kind == tarfs.Removed:
		say("Remove", c.Path)
	case c.Kind == tarfs.Lagged:
		say("Unknown")
	}
	return nil
}
