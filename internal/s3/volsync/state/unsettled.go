package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// Unsettled records that files were restored to a tree and may not be on its disk yet. It is
// written before the first file, and removed once all are on the disk. After a power failure or a
// disk error, such files may be truncated or have other content, without any sign of it: the kernel
// reports a disk error once, and processes that open the tree later do not see it. Such files are
// therefore restored again, and are not sent anywhere until then.
type Unsettled struct {
	Place  string `json:"place"` // source of the files
	Inode  uint64 `json:"inode"` // of the tree's root, to recognize another tree
	From   int64  `json:"from"`  // nanoseconds since 1970: the earliest start of the first file
	Boot   string `json:"boot"`  // boot when they were written; until the next one, the page cache has them
	Failed bool   `json:"failed"`
	// Until ends the time in which the damaged files were written, in nanoseconds since 1970: a file that was changed
	// later is a person's. 0 means that no sync has seen the damage.
	Until int64 `json:"until,omitempty"`

	file  string // path of the record
	doubt bool   // the files came from an earlier sync, and may be damaged
}

// UnsettledDir is the directory of the state with these records, one a tree.
const UnsettledDir = "unsettled"

// bootFile contains an ID that differs for each boot of the machine (Linux, random(4)).
const bootFile = "/proc/sys/kernel/random/boot_id"

// statFile has the time of the boot in its line btime, in seconds since 1970 (Linux, proc_stat(5)).
const statFile = "/proc/stat"

// Booted returns the time of this boot, or the zero time if it is unknown.
func Booted() time.Time {
	text, _ := os.ReadFile(statFile)
	for line := range strings.Lines(string(text)) {
		if seconds, ok := strings.CutPrefix(line, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(seconds), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}

// OpenUnsettled returns the record that an earlier restore to the tree left, or a new one. Without
// a state directory it returns nil. booted is when the machine was started.
func OpenUnsettled(dir string, t *tree.Tree, place string, booted time.Time) (*Unsettled, error) {
	if dir == "" {
		return nil, nil
	}
	path, inode, err := t.Identity()
	if err != nil {
		return nil, err
	}
	boot, _ := os.ReadFile(bootFile) // without it, each process counts as after a power failure
	sum := sha256.Sum256([]byte(path))
	u := &Unsettled{Place: place, Inode: inode, Boot: strings.TrimSpace(string(boot)),
		file: filepath.Join(dir, UnsettledDir, hex.EncodeToString(sum[:12]))}
	info, err := os.Stat(u.file)
	if errors.IsNotExist(err) {
		return u, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "read the record of restored files")
	}
	raw, err := os.ReadFile(u.file)
	if err != nil {
		return nil, errors.Wrapf(err, "read the record of restored files")
	}
	var old Unsettled
	if err := json.Unmarshal(raw, &old); err != nil {
		// The disk failed: a process that is killed leaves the earlier record.
		old = Unsettled{Inode: u.Inode, From: info.ModTime().UnixNano(), Failed: true}
	}
	if old.Inode == u.Inode {
		another := old.Boot != u.Boot || u.Boot == ""
		u.From, u.Place, u.Until, u.Failed = old.From, old.Place, old.Until, old.Failed || another
		if u.doubt = u.Failed; u.doubt && (another || u.Until == 0) {
			return u, u.bound(another && !old.Failed, booted)
		}
	}
	return u, nil
}

// bound records when the damaged files were written at the latest: before the machine was started again, or, after a
// failure of the disk, before now.
func (u *Unsettled) bound(power bool, booted time.Time) error {
	u.Until = time.Now().UnixNano()
	// The kernel rounds the time down to a second. If the clock was wrong in between, the time says nothing.
	if started := booted.Add(time.Second).UnixNano(); power && started > u.From && started < u.Until {
		u.Until = started
	}
	return u.write()
}

// Begin records that files are about to be written.
func (u *Unsettled) Begin(start time.Time) error {
	if u == nil || u.From != 0 {
		return nil
	}
	u.From = start.Add(-time.Second).UnixNano() // file times of the kernel lag a little
	return u.write()
}

func (u *Unsettled) write() error {
	raw, err := json.Marshal(u)
	if err != nil {
		return errors.Wrapf(err, "record a restored file")
	}
	if err := os.MkdirAll(filepath.Dir(u.file), 0o700); err != nil {
		return errors.Wrapf(err, "record a restored file")
	}
	// Half a record would mean that the disk failed: see OpenUnsettled.
	return errors.Wrapf(atomicfile.WriteDurable(u.file, raw, 0o600), "record a restored file")
}

// Fail records that the disk did not accept the data.
func (u *Unsettled) Fail() error {
	if u == nil || u.From == 0 {
		return nil
	}
	u.Failed, u.Until = true, 0
	return u.write()
}

// Settle records that all files are on the disk. whole means that no file of an earlier restore
// remains in doubt.
func (u *Unsettled) Settle(whole bool) error {
	if u == nil || u.From == 0 || u.doubt && !whole {
		return nil
	}
	u.From = 0
	if err := os.Remove(u.file); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "record the restored files")
	}
	return nil
}

// Doubts reports whether a file of the volume may be a damaged one of an earlier restore. It has not been changed since
// the failure (ctime). Restored files have mtimes in the past, or in the future if clocks differ; a file that a program
// writes has the current time.
func (u *Unsettled) Doubts(local *tree.Entry) bool {
	return u != nil && u.doubt && local != nil && local.Kind == tree.File && local.Change >= u.From &&
		local.Change <= u.Until &&
		(tree.Nano(u.From).After(local.ModTime) || local.ModTime.After(tree.Nano(local.Change+int64(time.Second))))
}

// Again sets the action for a file in doubt: it is restored if the bucket has it, and never
// uploaded. If the bucket no longer has it, a restore leaves it unchanged.
func (u *Unsettled) Again(a *plan.Action, direction plan.Direction) {
	switch {
	case direction != plan.Up && a.Remote != nil && a.Remote.Kind == tree.File:
		a.Op, a.Conflict, a.CopyTo, a.Merge = plan.Download, "", "", false
	case direction == plan.Down:
	default:
		err := errors.Newf(errors.Conflict,
			"the machine or its disk failed before the restored file was on the disk: it may be damaged")
		*a = plan.Action{Op: plan.Skip, Path: a.Path, Kind: a.Kind, Remote: a.Remote, Was: a.Was, Base: a.Base,
			Err: errors.Remedy(err, "sync down from %s, or touch the file if its content is right",
				cmp.Or(u.Place, "where it came from"))}
	}
}
