package keeper

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// stalled is how long a snapshot's receiver may take nothing. The sandbox is paused meanwhile.
const stalled = 30 * time.Second

// serveSnapshot sends the writable layer.
func (k *Keeper) serveSnapshot(conn *wire.Conn, path string) error {
	if err := k.errEnded(); err != nil {
		return err
	}
	k.mu.Lock()
	claim := k.args.Claim
	k.mu.Unlock()
	if claim == nil {
		return errors.Newf(errors.Conflict, "the sandbox has no image yet")
	}
	if err := checkMounted(path, claim.Mounts); err != nil {
		return err
	}
	k.snapshot.Lock()
	defer k.snapshot.Unlock()
	if err := layer.Read(k.guest.sb, k.guest.mainID(), path, frames{conn}); err != nil {
		if ended := k.errEnded(); ended != nil {
			return ended
		}
		return errors.Stage(err, "snapshot")
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// checkMounted refuses what is not in the writable layer, where a snapshot would find nothing.
func checkMounted(path string, mounts []wire.Mount) error {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		mounts = append(mounts[:len(mounts):len(mounts)], wire.Mount{Path: dir})
	}
	for _, m := range mounts {
		if clean := filepath.Clean(path); clean == m.Path || strings.HasPrefix(clean, m.Path+"/") {
			err := errors.Newf(errors.Invalid, "%.200q lies on %s, which is mounted and not part of snapshots", path, m.Path)
			return errors.Remedy(err, "name a directory of the sandbox's own files; a volume keeps its files by itself")
		}
	}
	return nil
}

// frames sends what is written as output.
type frames struct{ conn *wire.Conn }

func (f frames) Write(p []byte) (int, error) {
	if err := f.conn.SetWriteDeadline(time.Now().Add(stalled)); err != nil {
		return 0, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
	}
	return len(p), f.conn.Send(wire.KindStdout, p)
}

// fill fills the main container's writable layer from a tar stream, if there is one.
func (g *guest) fill(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return errors.Wrapf(err, "open the layer of the snapshot")
	}
	defer f.Close()
	return layer.Apply(g.sb, g.mainID(), f)
}
