package gvisor

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Snapshot implements engine.Snapshotter. The sandbox is paused until the last byte is written.
func (s *Container) Snapshot(ctx context.Context, path string, w io.Writer) error {
	if path != "" {
		if err := wire.CheckPath(path); err != nil {
			return err
		}
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err = conn.SendJSON(wire.KindRequest, wire.Request{Op: wire.Snapshot, Path: path}); err == nil {
		_, err = conn.ReceiveOutput(w)
	}
	switch {
	case ctx.Err() != nil:
		return errors.Stage(errors.Wrapf(context.Cause(ctx), "snapshot of sandbox %s", s.h.ID), "snapshot")
	case errors.Is(err, errors.Unavailable) && !s.e.alive(ctx, s.h.Ref):
		return errors.Explainf(err, errors.Conflict, "the sandbox %q has ended", s.h.ID)
	}
	return errors.Stage(err, "snapshot")
}

// Root implements engine.Rooted.
func (s *Container) Root() string {
	name := filepath.Join(s.e.dir(s.h.Ref), rootName)
	if _, err := os.Stat(name); err != nil {
		return ""
	}
	return name
}
