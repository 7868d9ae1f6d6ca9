package sandbox

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/internal/ids"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/record"
)

const checkpointPrefix = "chk_"

// Names of the files in a checkpoint's directory.
const (
	// checkpointRecord has the Checkpoint. It is written last and removed first: its presence marks a complete
	// checkpoint.
	checkpointRecord = "record.json"
	checkpointState  = "state" // the engine's state
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

// CheckpointOptions are the options of one Checkpoint.
type CheckpointOptions struct {
	Keep time.Duration // how long to keep it; positive
	Note []byte        // data of the caller, stored as is; must not be secret
}

// clone returns a copy that shares nothing with c.
func (c Checkpoint) clone() Checkpoint {
	own := c
	own.Sandbox, own.Withheld, own.Note = c.Sandbox.Clone(), slices.Clone(c.Withheld), slices.Clone(c.Note)
	own.Background = slices.Clone(c.Background)
	own.CommandLimits = make(map[string]time.Duration, len(c.CommandLimits))
	for id, limit := range c.CommandLimits {
		own.CommandLimits[id] = limit
	}
	return own
}

// Checkpoint saves the memory of a running sandbox's processes and its files at one moment, as described for
// engine.Checkpointer. The sandbox is paused meanwhile and then continues. The checkpoint is durable when Checkpoint
// returns. Kinds: NotFound, Conflict (it does not run, or has a terminal), Unsupported (the engine has no
// checkpoints, or the sandbox has volumes), Exhausted (the disk is full).
func (f *Fleet) Checkpoint(ctx context.Context, account, ref string, opts CheckpointOptions) (Checkpoint, error) {
	if err := f.begin(); err != nil {
		return Checkpoint{}, err
	}
	defer f.tasks.Done()
	e, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return Checkpoint{}, err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	c, err := f.checkpoint(ctx, e, box, opts)
	if err != nil {
		return Checkpoint{}, errors.Stage(err, "checkpoint")
	}
	logf.Infof(logContext(ctx, c.Sandbox), "checkpoint of the sandbox: %s, %s", c.ID, units.BytesSize(float64(c.Size)))
	return c.clone(), nil
}

// checkpoint creates the checkpoint. On failure it leaves no files behind.
func (f *Fleet) checkpoint(ctx context.Context, e *entry, box engine.Sandbox,
	opts CheckpointOptions) (c Checkpoint, err error) {
	keeper, err := f.checkpointer(e, box)
	if err == nil {
		err = f.checkRoom(ctx, box)
	}
	if err != nil {
		return c, err
	}
	c = Checkpoint{ID: checkpointPrefix + ids.New(), CommandLimits: map[string]time.Duration{},
		Note: slices.Clone(opts.Note)}
	defer f.holdCheckpoint(c.ID)()
	dir := f.checkpointDir(c.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return c, errors.Wrapf(err, "create the directory of a checkpoint")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.dropCheckpoint(ctx, c.ID))
		}
	}()
	f.describe(e, &c)
	if len(c.Sandbox.Secrets) > 0 && f.opts.Secrets != nil {
		if err := f.opts.Secrets.Relend(ctx, e.id, c.ID); err != nil {
			return c, err
		}
	}
	fault.Point("checkpoint.begun")
	if err := keeper.Checkpoint(ctx, f.stateOf(c.ID)); err != nil {
		return c, err
	}
	fault.Point("checkpoint.made")
	f.describe(e, &c) // again: a command may have started since
	c.Created = f.now()
	c.Expires = c.Created.Add(opts.Keep)
	if c.Size, err = ownSize(dir); err != nil {
		return c, err
	}
	if err := writeCheckpoint(dir, c); err != nil {
		return c, err
	}
	fault.Point("checkpoint.recorded")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checkpoints[c.ID] = c
	return c, nil
}

// checkpointer returns the engine's Checkpointer for a sandbox, or an error with the reason why it has none.
func (f *Fleet) checkpointer(e *entry, box engine.Sandbox) (engine.Checkpointer, error) {
	keeper, ok := box.(engine.Checkpointer)
	if !ok || !f.caps.Memory {
		return nil, f.noCheckpoints()
	}
	f.mu.Lock()
	sb := e.record.Clone()
	f.mu.Unlock()
	if len(sb.Volumes) > 0 || sb.S3 != nil {
		err := errors.Newf(errors.Unsupported,
			"a sandbox with a volume cannot be checkpointed: its programs may depend on files of the volume that change later")
		return nil, errors.Remedy(err, "create it without volumes, or make a snapshot of its files")
	}
	return keeper, nil
}

func (f *Fleet) noCheckpoints() error {
	err := errors.Newf(errors.Unsupported, "the engine %s does not support memory checkpoints on this machine",
		f.opts.Engine.Name())
	return errors.Remedy(err, "make a snapshot of the files instead, and restart the programs")
}

// checkRoom refuses a checkpoint if the disk has too little space, as far as that can be estimated.
func (f *Fleet) checkRoom(ctx context.Context, box engine.Sandbox) error {
	need := int64(spareRoom)
	if m, ok := box.(engine.Meter); ok {
		if u, err := m.Usage(ctx); err == nil {
			need += u.Memory
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(f.opts.Checkpoints, &st); err != nil {
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

// describe records in c the sandbox and its running commands.
func (f *Fleet) describe(e *entry, c *Checkpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb := e.record.Clone()
	sb.Stages, sb.Denials = []record.Stage{}, nil
	c.Sandbox, c.Withheld, c.Life = sb, sb.Withheld, min(sb.Expires.Sub(sb.Started), f.opts.Timeouts.MaxLife)
	for x := range e.commands {
		c.CommandLimits[x.ID()] = x.deadline.Sub(latest(x.started, sb.Started))
		if x.background {
			c.Background = append(c.Background, x.ID())
		}
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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

// writeCheckpoint writes the record that marks a checkpoint as complete.
func writeCheckpoint(dir string, c Checkpoint) error {
	b, err := json.Marshal(c)
	if err != nil {
		return errors.Wrapf(err, "encode a checkpoint")
	}
	err = atomicfile.WriteDurable(filepath.Join(dir, checkpointRecord), b, 0o600)
	if errors.Is(err, unix.ENOSPC) {
		err = errors.Remedy(errors.Explainf(err, errors.Exhausted, "no space left for the checkpoint"),
			"free some space on the disk of the data directory")
	}
	return errors.Wrapf(errors.Join(err, atomicfile.SyncDir(filepath.Dir(dir))), "write a checkpoint")
}

func (f *Fleet) checkpointDir(id string) string { return filepath.Join(f.opts.Checkpoints, id) }
func (f *Fleet) stateOf(id string) string       { return filepath.Join(f.checkpointDir(id), checkpointState) }

// holdCheckpoint prevents the removal of a checkpoint until release is called.
func (f *Fleet) holdCheckpoint(id string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[id]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.held[id]--; f.held[id] == 0 {
			delete(f.held, id)
		}
	}
}

// Checkpoints lists an account's checkpoints, newest first.
func (f *Fleet) Checkpoints(account string) []Checkpoint {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Checkpoint
	for _, c := range f.checkpoints {
		if c.Sandbox.Account == account && now.Before(c.Expires) {
			all = append(all, c.clone())
		}
	}
	slices.SortFunc(all, func(a, b Checkpoint) int { return strings.Compare(b.ID, a.ID) })
	return all
}

// FindCheckpoint returns the checkpoint with this ID. It returns NotFound if the checkpoint does not exist, has
// expired, or belongs to another account.
func (f *Fleet) FindCheckpoint(account, id string) (Checkpoint, error) {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.checkpoints[id]
	if !ok || c.Sandbox.Account != account || !now.Before(c.Expires) {
		return Checkpoint{}, errors.Remedy(errors.Newf(errors.NotFound, "checkpoint %.100q: not found, or removed", id),
			"make another checkpoint of a running sandbox")
	}
	return c.clone(), nil
}

// openCheckpoints loads the checkpoints of an earlier Fleet, and removes incomplete ones.
func (f *Fleet) openCheckpoints(ctx context.Context) error {
	if f.opts.Checkpoints == "" {
		return nil
	}
	if err := os.MkdirAll(f.opts.Checkpoints, 0o700); err != nil {
		return errors.Wrapf(err, "create the directory of checkpoints")
	}
	entries, err := os.ReadDir(f.opts.Checkpoints)
	if err != nil {
		return errors.Wrapf(err, "list the checkpoints")
	}
	for _, entry := range entries {
		b, err := os.ReadFile(filepath.Join(f.checkpointDir(entry.Name()), checkpointRecord))
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
		f.mu.Lock()
		f.checkpoints[c.ID] = c
		f.mu.Unlock()
	}
	f.sweepCheckpoints(ctx)
	return nil
}

// sweepCheckpoints removes expired checkpoints and directories that are not checkpoints.
func (f *Fleet) sweepCheckpoints(ctx context.Context) {
	if f.opts.Checkpoints == "" {
		return
	}
	entries, err := os.ReadDir(f.opts.Checkpoints)
	if err != nil {
		logf.Errorf(ctx, "look for checkpoints that have expired: %v", err)
		return
	}
	now := f.now()
	for _, entry := range entries {
		id := entry.Name()
		f.mu.Lock()
		c, known := f.checkpoints[id]
		keep := f.held[id] > 0 || known && now.Before(c.Expires)
		if !keep {
			delete(f.checkpoints, id)
		}
		f.mu.Unlock()
		if keep {
			continue
		}
		if err := f.dropCheckpoint(ctx, id); err != nil { // the next sweep retries it
			logf.Errorf(ctx, "remove a checkpoint: %v", err)
		}
	}
}

// dropCheckpoint removes the files of a checkpoint that is no longer listed.
func (f *Fleet) dropCheckpoint(ctx context.Context, id string) error {
	dir := f.checkpointDir(id)
	err := os.Remove(filepath.Join(dir, checkpointRecord))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, os.RemoveAll(dir))
	if f.opts.Secrets != nil {
		f.opts.Secrets.Return(context.WithoutCancel(ctx), id)
	}
	return errors.Wrapf(err, "remove the checkpoint %s", id)
}
