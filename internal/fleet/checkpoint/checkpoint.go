// Package checkpoint keeps checkpoints: directories with the memory and the files of sandboxes, and their records.
package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

const prefix = "chk_"

// Names of the files in a checkpoint's directory.
const (
	// recordFile has the Checkpoint. It is written last and removed first: its presence marks a complete
	// checkpoint.
	recordFile = "record.json"
	stateFile  = "state" // the engine's state
)

// spareRoom is how many bytes a checkpoint must leave free on the disk.
const spareRoom = 256 << 20

// Checkpoint is the record of a checkpoint: the memory of a sandbox's processes and its files at one moment. It
// belongs to the account of the sandbox, since it may contain the account's secrets. It is not an image, and other
// accounts cannot see it.
type Checkpoint struct {
	ID      string         `json:"id"`      // "chk_" and a ULID in lower case
	Sandbox record.Sandbox `json:"sandbox"` // record of the original sandbox at that moment
	// Withheld is Withheld of Sandbox, which is not stored with it.
	Withheld []string `json:"withheld,omitempty"`
	// Life is the lifetime of restored sandboxes. CommandLimits are the time limits of resumed commands, by their
	// IDs. Both start again at the restore.
	Life          time.Duration            `json:"life"`
	CommandLimits map[string]time.Duration `json:"command_limits"`
	// Background are the IDs of commands that do not keep a sandbox from becoming idle.
	Background []string  `json:"background,omitempty"`
	Size       int64     `json:"bytes"` // on the disk, without files shared with the image
	Created    time.Time `json:"created_at"`
	Expires    time.Time `json:"expires_at"` // time of its deletion
	Note       []byte    `json:"note,omitempty"`
}

// clone returns a copy that shares nothing with c.
func (c Checkpoint) clone() Checkpoint {
	own := c
	own.Sandbox, own.Withheld, own.Note = c.Sandbox.Clone(), slices.Clone(c.Withheld), slices.Clone(c.Note)
	own.Background, own.CommandLimits = slices.Clone(c.Background), maps.Clone(c.CommandLimits)
	return own
}

// Plan returns the plan for a sandbox that is restored from c: like the original one, with this name. tags replace its
// tags, unless they are nil. Harvest's own tags are left out.
func (c Checkpoint) Plan(rules spec.Rules, name string, tags map[string]string) (spec.Plan, error) {
	sb := c.Sandbox
	if tags == nil {
		tags = sb.Tags
	}
	var ps spec.Problems
	p := spec.Plan{
		Request: spec.Request{
			Image: sb.Image, Name: name, Tags: spec.UserTags(tags), Secrets: sb.Secrets, Reveal: sb.Reveal,
			Withhold: c.Withheld, Workdir: sb.Workdir, User: sb.User, Ports: sb.Ports, PortDetails: sb.PortDetails,
			SnapshotOnEnd: sb.SnapshotOnEnd, Cold: true,
		},
		Limits: sb.Limits, ReservedCPU: cmp.Or(sb.Limits.CPU, rules.Defaults.CPU),
		ReservedMemory: cmp.Or(sb.Limits.Memory, rules.Defaults.Memory),
		Life:           min(c.Life, rules.Timeouts.MaxLife),
		Idle:           min(time.Duration(sb.IdleTimeoutSeconds*float64(time.Second)), rules.Timeouts.MaxLife),
	}
	spec.CheckNames(&ps, p.Request)
	p.Network = rules.Network(&ps, sb.Network.Clone())
	if sb.Engine != rules.Engine {
		ps.Addf(errors.Unsupported, "restore it on that engine",
			"the checkpoint belongs to the engine %.80q; this server has only %s", sb.Engine, rules.Engine)
	}
	return p, ps.Err()
}

// Store keeps the checkpoints below a directory. All methods may be called concurrently. Without a directory it is
// empty.
type Store struct {
	dir     string
	secrets *secret.Vault // nil without one
	now     func() time.Time

	mu   sync.Mutex
	all  map[string]Checkpoint // guarded by mu; by ID: complete ones
	held map[string]int        // guarded by mu; by ID: operations that create or restore the checkpoint
}

// Source is a sandbox of which a checkpoint is made.
type Source struct {
	ID       string                 // of the sandbox
	Memory   int64                  // bytes that its processes have, if known
	Describe func(c *Checkpoint)    // records the sandbox and its running commands; replaces earlier ones
	Save     func(dir string) error // saves its state
}

// Make makes a checkpoint and keeps it for a time. note is data of the caller. On failure it leaves no files behind.
func (s *Store) Make(ctx context.Context, from Source, keep time.Duration, note []byte) (c Checkpoint, err error) {
	if err := s.checkRoom(from.Memory); err != nil {
		return c, err
	}
	c = Checkpoint{ID: prefix + ids.New(), Note: slices.Clone(note)}
	defer s.Hold(c.ID)()
	dir := s.dirOf(c.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return c, errors.Wrapf(err, "create the directory of a checkpoint")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.drop(ctx, c.ID))
		}
	}()
	from.Describe(&c)
	if len(c.Sandbox.Secrets) > 0 && s.secrets != nil {
		if err := s.secrets.Relend(ctx, from.ID, c.ID); err != nil {
			return c, err
		}
	}
	fault.Point("checkpoint.begun")
	if err := from.Save(s.State(c.ID)); err != nil {
		return c, err
	}
	fault.Point("checkpoint.made")
	from.Describe(&c) // again: a command may have started since
	c.Created = s.now()
	c.Expires = c.Created.Add(keep)
	if c.Size, err = ownSize(dir); err != nil {
		return c, err
	}
	if err := write(dir, c); err != nil {
		return c, err
	}
	fault.Point("checkpoint.recorded")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[c.ID] = c
	return c.clone(), nil
}

// checkRoom refuses a checkpoint if the disk has too little space, as far as that can be estimated.
func (s *Store) checkRoom(memory int64) error {
	need := spareRoom + memory
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return errors.Wrapf(err, "check the free space for checkpoints")
	}
	free := int64(st.Bavail) * st.Bsize
	if free >= need {
		return nil
	}
	err := errors.Newf(errors.Exhausted, "the disk has %s free; the checkpoint needs %s",
		units.BytesSize(float64(free)), units.BytesSize(float64(need)))
	return errors.Remedy(err, "free some space on the disk of the data directory")
}

// ownSize returns the size of the files below dir that have no other hard link.
func ownSize(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 1 {
			n += info.Size()
		}
		return nil
	})
	return n, errors.Wrapf(err, "measure a checkpoint")
}

// write writes the record that marks a checkpoint as complete.
func write(dir string, c Checkpoint) error {
	b, err := json.Marshal(c)
	if err != nil {
		return errors.Wrapf(err, "encode a checkpoint")
	}
	err = atomicfile.WriteDurable(filepath.Join(dir, recordFile), b, 0o600)
	if errors.Is(err, unix.ENOSPC) {
		err = errors.Remedy(errors.Explainf(err, errors.Exhausted, "no space left for the checkpoint"),
			"free some space on the disk of the data directory")
	}
	return errors.Wrapf(errors.Join(err, atomicfile.SyncDir(filepath.Dir(dir))), "write a checkpoint")
}

func (s *Store) dirOf(id string) string { return filepath.Join(s.dir, id) }

// State returns the path of the engine's state of a checkpoint.
func (s *Store) State(id string) string { return filepath.Join(s.dirOf(id), stateFile) }

// Hold prevents the removal of a checkpoint until release is called.
func (s *Store) Hold(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[id]--; s.held[id] == 0 {
			delete(s.held, id)
		}
	}
}

// List lists an account's checkpoints, newest first.
func (s *Store) List(account string) []Checkpoint {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Checkpoint
	for _, c := range s.all {
		if c.Sandbox.Account == account && now.Before(c.Expires) {
			all = append(all, c.clone())
		}
	}
	slices.SortFunc(all, func(a, b Checkpoint) int { return strings.Compare(b.ID, a.ID) })
	return all
}

// Find returns the checkpoint with this ID. It returns NotFound if the checkpoint does not exist, has
// expired, or belongs to another account.
func (s *Store) Find(account, id string) (Checkpoint, error) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.all[id]
	if !ok || c.Sandbox.Account != account || !now.Before(c.Expires) {
		return Checkpoint{}, errors.Remedy(errors.Newf(errors.NotFound, "checkpoint %.100q: not found, or removed", id),
			"make another checkpoint of a running sandbox")
	}
	return c.clone(), nil
}

// Open loads the checkpoints of an earlier server, and removes incomplete ones.
func Open(ctx context.Context, dir string, secrets *secret.Vault, now func() time.Time) (*Store, error) {
	s := &Store{dir: dir, secrets: secrets, now: now, all: map[string]Checkpoint{}, held: map[string]int{}}
	if s.dir == "" {
		return s, nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, errors.Wrapf(err, "create the directory of checkpoints")
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, errors.Wrapf(err, "list the checkpoints")
	}
	for _, entry := range entries {
		b, err := os.ReadFile(filepath.Join(s.dirOf(entry.Name()), recordFile))
		var c Checkpoint
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		if err == nil && c.ID != entry.Name() {
			err = errors.Errorf("its record is of %.60q", c.ID)
		}
		if err != nil {
			logf.Infof(ctx, "removing the checkpoint %s, which is not whole: %v", entry.Name(), err)
			continue
		}
		c.Sandbox.Withheld = c.Withheld
		s.mu.Lock()
		s.all[c.ID] = c
		s.mu.Unlock()
	}
	s.Sweep(ctx)
	return s, nil
}

// Sweep removes expired checkpoints and directories that are not checkpoints.
func (s *Store) Sweep(ctx context.Context) {
	if s.dir == "" {
		return
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		logf.Errorf(ctx, "look for checkpoints that have expired: %v", err)
		return
	}
	now := s.now()
	for _, entry := range entries {
		id := entry.Name()
		s.mu.Lock()
		c, known := s.all[id]
		keep := s.held[id] > 0 || known && now.Before(c.Expires)
		if !keep {
			delete(s.all, id)
		}
		s.mu.Unlock()
		if keep {
			continue
		}
		if err := s.drop(ctx, id); err != nil { // the next sweep retries it
			logf.Errorf(ctx, "remove a checkpoint: %v", err)
		}
	}
}

// Remove removes a checkpoint. Sweep removes the files of one that is held.
func (s *Store) Remove(ctx context.Context, id string) error {
	s.mu.Lock()
	delete(s.all, id)
	held := s.held[id] > 0
	s.mu.Unlock()
	if held {
		return nil
	}
	return s.drop(ctx, id)
}

// RemoveOthers removes the checkpoints with this note that are not among those to keep, by their IDs.
func (s *Store) RemoveOthers(ctx context.Context, note []byte, keep map[string]bool) {
	s.mu.Lock()
	var others []string
	for id, c := range s.all {
		if bytes.Equal(c.Note, note) && !keep[id] {
			others = append(others, id)
		}
	}
	s.mu.Unlock()
	for _, id := range others {
		if err := s.Remove(ctx, id); err != nil {
			logf.Errorf(ctx, "remove an unused checkpoint: %v", err)
		}
	}
}

// drop removes the files of a checkpoint that is no longer listed.
func (s *Store) drop(ctx context.Context, id string) error {
	dir := s.dirOf(id)
	err := os.Remove(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, os.RemoveAll(dir))
	if s.secrets != nil {
		s.secrets.Return(context.WithoutCancel(ctx), id)
	}
	return errors.Wrapf(err, "remove the checkpoint %s", id)
}

// IDs returns the IDs of all checkpoints.
func (s *Store) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.all))
}
