package pod

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/s3/share"
	"github.com/RelevanceAI/harvest/internal/s3/volsync"
)

// opSync is followed by a session of yamux, in which the agent opens connections to the server's S3. The agent answers
// with a Reply whose payload is a volsync.Stats on the stream that the server opened.
const opSync wire.Operation = "pod-sync"

// Volume is a volume that a pod gets from the server, and its way to the files.
type Volume struct {
	Name     string
	ReadOnly bool
	Access   share.Access
}

// mux is the configuration of sessions. A write that gets no room for its ConnectionWriteTimeout ends the session, as a
// server that is gone does.
func mux() *yamux.Config {
	c := yamux.DefaultConfig()
	c.MaxStreamWindowSize = 4 << 20
	c.LogOutput = io.Discard // the requests return their errors
	return c
}

// Sync syncs the pod's tree of a volume with the server's. serve serves the S3 to connections of the pod until its
// context ends. It closes conn.
func Sync(ctx context.Context, conn *wire.Conn, v Volume,
	serve func(context.Context, net.Listener) error) (volsync.Stats, error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	stats, err := syncOver(ctx, conn, v, serve)
	if err != nil && ctx.Err() != nil {
		err = errors.Wrapf(context.Cause(ctx), "sync the volume of a pod")
	}
	return stats, err
}

func syncOver(ctx context.Context, conn *wire.Conn, v Volume,
	serve func(context.Context, net.Listener) error) (stats volsync.Stats, err error) {
	if err := conn.SendJSON(wire.KindRequest, request{Op: opSync, Volume: &v}); err != nil {
		return stats, err
	}
	session, err := yamux.Client(conn.Stream(), mux())
	if err != nil {
		return stats, errors.Wrapf(err, "sync the volume of a pod")
	}
	defer session.Close()
	control, err := session.Open()
	if err != nil {
		return stats, errors.Explainf(err, errors.Unavailable, "the connection to the pod of a sandbox broke")
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- serve(ctx, session) }()
	defer func() {
		cancel()
		<-served // its error is the end of the session
	}()
	return stats, receive(wire.NewConn(control), &stats)
}

// syncs syncs the volumes of a pod.
type syncs struct {
	volumes *volume.Local
	notes   string // directory of the records of syncs

	mu   sync.Mutex
	busy map[string]*sync.Mutex // by volume; held during a sync, because syncs of a tree share records; guarded by mu
}

// answer syncs a volume for the server on conn. The volume is made if it is missing.
func (s *syncs) answer(ctx context.Context, conn *wire.Conn, v Volume) error {
	session, err := yamux.Server(conn.Stream(), mux())
	if err != nil {
		return errors.Wrapf(err, "sync a volume")
	}
	defer session.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-session.CloseChan(): // the server has left
			cancel()
		case <-ctx.Done():
		}
	}()
	control, err := session.AcceptStreamWithContext(ctx)
	if err != nil {
		return errors.Wrapf(err, "sync a volume")
	}
	defer control.Close()
	answer := wire.NewConn(control)
	stats, err := s.sync(ctx, session, v)
	if err != nil {
		err = answer.SendJSON(wire.KindFailure, wire.FailureOf(err))
	} else {
		err = answer.SendJSON(wire.KindReply, stats)
	}
	if err == nil {
		<-session.CloseChan() // the server has read the answer
	}
	return nil // an answer without the session would be a frame within it
}

// lock waits for another sync of a volume.
func (s *syncs) lock(name string) (unlock func()) {
	s.mu.Lock()
	if s.busy == nil {
		s.busy = map[string]*sync.Mutex{}
	}
	mu := s.busy[name]
	if mu == nil {
		mu = new(sync.Mutex)
		s.busy[name] = mu
	}
	s.mu.Unlock()
	mu.Lock()
	return mu.Unlock
}

func (s *syncs) sync(ctx context.Context, session *yamux.Session, v Volume) (volsync.Stats, error) {
	if s.volumes == nil {
		return volsync.Stats{}, errors.Newf(errors.Unsupported, "the pod keeps no volumes")
	}
	defer s.lock(v.Name)()
	if _, err := s.volumes.Create(ctx, v.Name); err != nil {
		return volsync.Stats{}, err
	}
	return share.Sync(ctx, v.Access, func(context.Context) (net.Conn, error) { return session.Open() },
		share.Directory{Path: s.volumes.Path(v.Name), State: filepath.Join(s.notes, v.Name), ReadOnly: v.ReadOnly})
}
