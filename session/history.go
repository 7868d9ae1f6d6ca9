package session

import (
	"archive/tar"
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/volume"
)

// historyTime is the time limit for writing a history.
const historyTime = time.Minute

// keepHistory writes the session's record into its state volume, as sessions/ID.db (mission E4), in the background.
// Writes do not overlap; requests that arrive during a write are merged into one.
func (r *runner) keepHistory() {
	s := r.session()
	if r.m.opts.History == nil || r.m.opts.Volumes == nil ||
		!slices.Contains(s.Sandbox.Volumes, sandbox.Mount{Name: stateVolume, Path: stateMount}) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unkept++
	if r.unkept > 1 {
		return // the running writer checks for new changes
	}
	r.m.work.Go(func() {
		for {
			r.mu.Lock()
			had := r.unkept
			r.mu.Unlock()
			if err := r.m.writeHistory(s); err != nil {
				logf.Errorf(r.m.ctx, "write the history of session %s into its volume: %v", s.ID, err)
			}
			r.mu.Lock()
			done := r.unkept == had
			if done {
				r.unkept = 0
			}
			r.mu.Unlock()
			if done {
				return
			}
		}
	})
}

func (m *Manager) writeHistory(s Session) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), historyTime)
	defer cancel()
	data, err := m.opts.History(ctx, s.ID)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err = w.WriteHeader(&tar.Header{Name: s.ID + ".db", Mode: 0o644, Size: int64(len(data)),
		ModTime: s.Active}); err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return errors.Wrapf(err, "pack the history")
	}
	v, err := volume.Of(m.opts.Volumes, account.Owner(s.Account)).Open(ctx, stateVolume)
	if err != nil {
		return err
	}
	return v.CopyIn(ctx, "sessions", &archive)
}
