package volumes

import (
	"archive/tar"
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// historyTime is the time limit for writing a history.
const historyTime = time.Minute

// History writes the record of a session into its state volume, as sessions/ID.db.
type History struct {
	Context context.Context // that the writer runs in; it completes a write when the context ends
	Work    *tasks.Group    // counts the writer
	Volumes volume.Provider // nil: nothing is written
	// Read returns the record as a database; nil: nothing is written.
	Read           func(ctx context.Context, session string) ([]byte, error)
	Owner, Session string

	mu     sync.Mutex
	unkept int // guarded by mu; changes that are not in the volume yet
}

// Keep writes the record, in the background, if the volume is among the mounts of the session's sandbox. active is the
// time of the last activity. Writes do not overlap; requests that arrive during a write are merged into one.
func (h *History) Keep(mounts []spec.Mount, active time.Time) {
	if h.Read == nil || h.Volumes == nil || !slices.Contains(mounts, stateIn()) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unkept++
	if h.unkept > 1 {
		return // the running writer checks for new changes
	}
	h.Work.Go(func() {
		for {
			h.mu.Lock()
			had := h.unkept
			h.mu.Unlock()
			if err := h.write(active); err != nil {
				logf.Errorf(h.Context, "write the history of session %s into its volume: %v", h.Session, err)
			}
			h.mu.Lock()
			done := h.unkept == had
			if done {
				h.unkept = 0
			}
			h.mu.Unlock()
			if done {
				return
			}
		}
	})
}

func (h *History) write(active time.Time) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Context), historyTime)
	defer cancel()
	data, err := h.Read(ctx, h.Session)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err = w.WriteHeader(&tar.Header{Name: h.Session + ".db", Mode: 0o644, Size: int64(len(data)),
		ModTime: active}); err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return errors.Wrapf(err, "pack the history")
	}
	v, err := volume.Of(h.Volumes, account.Owner(h.Owner)).Open(ctx, stateVolume)
	if err != nil {
		return err
	}
	return v.CopyIn(ctx, "sessions", &archive)
}
