package keeper

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// stalled limits how long the receiver of a snapshot may read nothing. The sandbox is paused for that time.
const stalled = 30 * time.Second

// serveSnapshot sends the writable layer.
func (k *Keeper) serveSnapshot(conn *wire.Conn, path string) error {
	if err := k.errEnded(); err != nil {
		return k.serveKept(conn, path, err)
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
	if err := k.sandbox.Snapshot(path, frames{conn}); err != nil {
		if ended := k.errEnded(); ended != nil {
			return ended
		}
		return errors.Stage(err, "snapshot")
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// keptFile is the writable layer of a sandbox that ran out of memory.
const keptFile = "kept.tar"

// reserve returns the memory that a sandbox with KeepOnOOM may use beyond its limit until that is noticed and
// its layer is read.
func reserve(limit int64) int64 {
	const least, share = 256 << 20, 4
	return max(least, limit/share)
}

// keepLayer writes the layer of a sandbox that is about to be ended to keptFile.
func (k *Keeper) keepLayer() {
	f, err := os.OpenFile(keptFile+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		log.Warningf("keep the writable layer: %v", err)
		return
	}
	err = k.sandbox.Snapshot("", f)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(keptFile+".new", keptFile)
	}
	if err != nil {
		log.Warningf("keep the writable layer: %v", err)
		_ = os.Remove(keptFile + ".new")
	}
}

// serveKept sends the kept layer of an ended sandbox. If there is none, it returns ended.
func (k *Keeper) serveKept(conn *wire.Conn, path string, ended error) error {
	f, err := os.Open(keptFile)
	if err != nil || path != "" {
		return ended
	}
	defer f.Close()
	if _, err := io.Copy(frames{conn}, f); err != nil {
		return errors.Stage(err, "snapshot")
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn.SendJSON(wire.KindReply, wire.Reply{})
}

// checkMounted refuses paths outside the writable layer, because a snapshot would not contain them.
func checkMounted(path string, mounts []wire.Mount) error {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		mounts = append(mounts[:len(mounts):len(mounts)], wire.Mount{Path: dir})
	}
	for _, m := range mounts {
		if clean := filepath.Clean(path); clean == m.Path || strings.HasPrefix(clean, m.Path+"/") {
			err := errors.Newf(errors.Invalid, "%.200q lies on %s, which is mounted and not part of snapshots", path,
				m.Path)
			return errors.Remedy(err, "name a directory of the sandbox's own files; a volume keeps its files by itself")
		}
	}
	return nil
}

// frames sends written data as output frames.
type frames struct{ conn *wire.Conn }

func (f frames) Write(p []byte) (int, error) {
	if err := f.conn.SetWriteDeadline(time.Now().Add(stalled)); err != nil {
		return 0, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
	}
	return len(p), f.conn.Send(wire.KindStdout, p)
}
