package s3sync

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// unsettled says that files were restored to a tree which may not be on its disk. It is written before the first of them, and removed when all are
// there. After a power failure, or when the disk has refused to take them, such files may be shorter than they were, or hold something else, and
// nothing tells: a disk's error is told once, and who opens the tree later does not see it. So they are restored once more, and until then none of
// them is sent anywhere.
type unsettled struct {
	Place  string `json:"place"` // where the files came from
	Inode  uint64 `json:"inode"` // of the tree's root: another one is another tree
	From   int64  `json:"from"`  // nanoseconds since 1970: when the first of them was begun, at the earliest
	Boot   string `json:"boot"`  // of the machine, when they were written: as long as it runs, its memory has them
	Failed bool   `json:"failed"`

	file  string // where it is
	doubt bool   // what is there came from an earlier sync, and may be damaged
}

// unsettledDir is the directory of the state that has them, by tree.
const unsettledDir = "unsettled"

// bootFile has the machine's boot, another text each time (Linux, random(4)).
const bootFile = "/proc/sys/kernel/random/boot_id"

// openUnsettled returns what an earlier restore to the tree left, or what this one will leave. Where nothing is remembered, it is nil.
func openUnsettled(dir string, t *Tree, place string) (*unsettled, error) {
	if dir == "" {
		return nil, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(t.root.Fd()), &st); err != nil {
		return nil, errors.Wrapf(err, "open a tree")
	}
	path, err := filepath.Abs(t.root.Name())
	if err != nil {
		return nil, errors.Wrapf(err, "open a tree")
	}
	boot, _ := os.ReadFile(bootFile) // without it, each process is as one after a power failure
	sum := sha256.Sum256([]byte(path))
	u := &unsettled{Place: place, Inode: st.Ino, Boot: strings.TrimSpace(string(boot)), file: filepath.Join(dir, unsettledDir, hex.EncodeToString(sum[:12]))}
	info, err := os.Stat(u.file)
	if errors.IsNotExist(err) {
		return u, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "read what was restored")
	}
	raw, err := os.ReadFile(u.file)
	if err != nil {
		return nil, errors.Wrapf(err, "read what was restored")
	}
	var old unsettled
	if err := json.Unmarshal(raw, &old); err != nil {
		// It was being written when the power failed.
		old = unsettled{Inode: u.Inode, From: info.ModTime().UnixNano(), Failed: true}
	}
	if old.Inode == u.Inode {
		u.From, u.Place, u.Failed = old.From, old.Place, old.Failed || old.Boot != u.Boot || u.Boot == ""
		u.doubt = u.Failed
	}
	return u, nil
}

// begin notes that files are about to be written.
func (u *unsettled) begin(start time.Time) error {
	if u == nil || u.From != 0 {
		return nil
	}
	u.From = start.Add(-time.Second).UnixNano() // the kernel's times of files are a little behind
	return u.write()
}

func (u *unsettled) write() error {
	raw, err := json.Marshal(u)
	if err != nil {
		return errors.Wrapf(err, "note what is restored")
	}
	if err := os.MkdirAll(filepath.Dir(u.file), 0o700); err != nil {
		return errors.Wrapf(err, "note what is restored")
	}
	f, err := os.OpenFile(u.file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Wrapf(err, "note what is restored")
	}
	_, err = f.Write(raw)
	return errors.Wrapf(errors.Join(err, f.Sync(), f.Close()), "note what is restored")
}

// failed notes that the disk did not take what was written.
func (u *unsettled) failed() error {
	if u == nil || u.From == 0 {
		return nil
	}
	u.Failed = true
	return u.write()
}

// settled notes that all is on the disk; whole says that nothing of an earlier restore is left as it was.
func (u *unsettled) settled(whole bool) error {
	if u == nil || u.From == 0 || u.doubt && !whole {
		return nil
	}
	u.From = 0
	if err := os.Remove(u.file); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "note what was restored")
	}
	return nil
}

// doubts reports whether a file of the volume is one that an earlier restore wrote, perhaps in vain. Restored files have times of the past, or of
// the future if clocks differ; who writes one gives it that of the moment.
func (u *unsettled) doubts(local *Entry) bool {
	return u != nil && u.doubt && local != nil && local.Kind == File && local.Change >= u.From && (Nano(u.From).After(local.ModTime) || local.ModTime.After(Nano(local.Change+int64(time.Second))))
}

// again makes an action for a file in doubt: it is restored if the bucket has it, and sent nowhere. If the bucket has it no more, a restore leaves
// it as it is.
func (u *unsettled) again(a *Action, direction Direction) {
	switch {
	case direction != Up && a.remote != nil && a.remote.Kind == File:
		a.Op, a.Conflict, a.copyTo, a.merge = Download, "", "", false
	case direction == Down:
	default:
		err := errors.Newf(errors.Conflict, "it was restored, and the machine or its disk failed before it was stored: it may be damaged")
		*a = Action{Op: Skip, Path: a.Path, Kind: a.Kind, remote: a.remote, was: a.was, base: a.base, Err: errors.Remedy(err, "sync down from %s, or touch the file if it is as it should be", cmp.Or(u.Place, "where it came from"))}
	}
}

// durable makes all that was written durable, or remembers that it may not be.
func (r *run) durable() error {
	err := r.t.commit()
	if err != nil {
		err = errors.Join(err, r.unsettled.failed())
	}
	return err
}

// writing is for all that makes files in the volume to call before it does.
func (r *run) writing(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.unsettled.begin(r.start)
}
