package keeper

import (
	"encoding/json"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// checkpointFiles are the files that gVisor writes, in gVisor's order.
var checkpointFiles = [3]string{wire.CheckpointState, wire.CheckpointIndex, wire.CheckpointPages}

// A checkpoint is retried while a command is ending: up to checkpointTries attempts, with a delay of checkpointPause.
const (
	checkpointTries = 200
	checkpointPause = 5 * time.Millisecond
)

// filesPerCommand counts standard input, output and error.
const filesPerCommand = 3

// identify returns the identities of a command's files, for the command with this number.
func (p *plumbing) identify(number int) []layer.KeptFile {
	var all []layer.KeptFile
	for fd, f := range p.guest {
		var st unix.Stat_t
		if fd < filesPerCommand && unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			all = append(all, layer.KeptFile{Device: st.Dev, Inode: st.Ino,
				Number: layer.FirstFile + filesPerCommand*number + fd})
		}
	}
	return all
}

// checkpoint writes a checkpoint to dir, which is empty. It pauses the sandbox until it returns, and closes the
// connections to its ports.
func (k *Keeper) checkpoint(dir string) error {
	if err := k.awaitReady(); err != nil {
		return err
	}
	if k.guest == nil {
		return errors.Remedy(errors.Newf(errors.Unsupported, "a container has no checkpoints of its memory"),
			"make a snapshot of its files")
	}
	k.starting.Lock()
	defer k.starting.Unlock()
	k.snapshot.Lock()
	defer k.snapshot.Unlock()
	k.guest.AwaitCleared()
	if err := k.checkKeepable(); err != nil {
		return err
	}
	k.relay.mu.Lock()
	defer k.relay.mu.Unlock()
	k.relay.end(k.sandbox)
	resume, err := k.pauseBetweenEnds()
	if err != nil {
		return err
	}
	defer resume()
	saved, keep, err := k.inventory()
	if err != nil {
		return err
	}
	inside, err := layer.Keep(k.guest.Sandbox, k.guest.MainID(), keep)
	if err != nil {
		return errors.Stage(err, "checkpoint")
	}
	for i, pid := range inside {
		saved.Commands[i].Inside = pid
	}
	if err := k.write(dir, saved); err != nil {
		if ended := k.errEnded(); ended != nil {
			return ended
		}
		return errors.Stage(err, "checkpoint")
	}
	return nil
}

// checkKeepable refuses sandboxes with things that a checkpoint cannot contain.
func (k *Keeper) checkKeepable() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.args.Claim.Mounts) > 0 {
		err := errors.Newf(errors.Unsupported,
			"a sandbox with a volume cannot be checkpointed: its programs would rely on an outdated state of %s",
			k.args.Claim.Mounts[0].Path)
		return errors.Remedy(err, "create it without volumes, or make a snapshot of its files")
	}
	for _, id := range k.order {
		c := k.commands[id]
		switch {
		case ended(c) || c.tool:
		case c.terminal != nil:
			err := errors.Newf(errors.Conflict, "process %q has a terminal, which cannot be checkpointed", id)
			return errors.Remedy(err, "end it, or start it without a terminal")
		case c.files == nil:
			return errors.Remedy(errors.Newf(errors.Conflict,
				"process %q is a program of Harvest's own, which cannot be checkpointed", id), "end it first")
		}
	}
	return nil
}

// end ends the relay. r.mu is held. The next connection starts a new one.
func (r *relay) end(sb kept.Sandbox) {
	if r.conn == nil {
		return
	}
	_ = sb.Signal(r.pid, syscall.SIGKILL, false)
	_, _ = sb.WaitPID(r.pid)
	_ = r.conn.Close()
	r.conn = nil
}

// pauseBetweenEnds pauses the sandbox at a moment when each command either runs or is known to have ended.
func (k *Keeper) pauseBetweenEnds() (resume func(), err error) {
	resume = func() {
		if err := k.sandbox.Resume(); err != nil {
			log.Warningf("resume after a checkpoint: %v", err)
		}
	}
	for range checkpointTries {
		if err := k.sandbox.Pause(); err != nil {
			return nil, errors.Wrapf(err, "pause sandbox")
		}
		all, err := k.sandbox.Processes()
		if err != nil {
			resume()
			return nil, errors.Wrapf(err, "list processes")
		}
		if k.allRun(all) {
			return resume, nil
		}
		resume()
		select {
		case <-k.ended:
			return nil, k.errEnded()
		case <-time.After(checkpointPause):
		}
	}
	return nil, errors.Remedy(errors.Newf(errors.Unavailable,
		"too many commands in the sandbox end during the checkpoint"),
		"try again when fewer commands end")
}

// allRun reports whether every command that is not known to have ended is among the processes.
func (k *Keeper) allRun(all []kept.Process) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.commands {
		if !ended(c) && !slices.ContainsFunc(all, func(p kept.Process) bool { return p.PID == c.pid }) {
			return false
		}
	}
	return true
}

// inventory lists the commands and their files.
func (k *Keeper) inventory() (*wire.Saved, layer.Kept, error) {
	var null unix.Stat_t
	if err := unix.Stat(os.DevNull, &null); err != nil {
		return nil, layer.Kept{}, errors.Wrapf(err, "look at the null device")
	}
	keep := layer.Kept{Root: k.guest.Args.Ref,
		Files: []layer.KeptFile{{Device: null.Dev, Inode: null.Ino, Number: layer.NullFile}}}
	k.mu.Lock()
	defer k.mu.Unlock()
	claim := k.args.Claim
	saved := &wire.Saved{Version: wire.GVisor, Platform: k.args.Platform, Rootless: k.args.Rootless,
		Ref: k.guest.Args.Ref, Prepared: k.guest.Taken,
		Hostname: k.guest.Hostname, MachineID: k.guest.MachineID, Limits: k.args.Limits, Started: k.started,
		Files: map[string]wire.File{},
		Claim: wire.ClaimArgs{Env: claim.Env, Dir: claim.Dir, User: claim.User}}
	for _, id := range k.order {
		c := k.commands[id]
		switch {
		case ended(c):
			continue
		case c.tool:
			keep.Leave = append(keep.Leave, c.pid)
			continue
		}
		keep.Files, keep.Commands = append(keep.Files, c.files...), append(keep.Commands, c.pid)
		c.mu.Lock()
		saved.Commands = append(saved.Commands, wire.SavedCommand{ID: c.id, Args: c.args, Started: c.started,
			PID: c.pid, Stdin: c.stdin != nil,
			Number: c.number})
		c.mu.Unlock()
	}
	return saved, keep, nil
}

// write makes gVisor write its files, and adds the others. All of them are durable when it returns.
func (k *Keeper) write(dir string, saved *wire.Saved) (err error) {
	var files runsc.CheckpointFiles
	defer func() {
		for _, f := range files {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
	}()
	for i, name := range checkpointFiles {
		if files[i], err = os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
			return errors.Wrapf(err, "create file of a checkpoint")
		}
	}
	if err := k.guest.Sandbox.Checkpoint(files); err != nil {
		return saveError(err)
	}
	for i, name := range checkpointFiles {
		if saved.Files[name], err = fileSum(files[i]); err != nil {
			return err
		}
		if err := files[i].Sync(); err != nil {
			return errors.Wrapf(err, "write checkpoint")
		}
	}
	for name, from := range map[string]string{wire.CheckpointRoot: k.guest.Root,
		wire.CheckpointInit: k.guest.Args.Init} {
		if err := linkOrCopy(from, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	b, err := json.Marshal(saved)
	if err != nil {
		return errors.Wrapf(err, "encode checkpoint")
	}
	f, err := os.OpenFile(filepath.Join(dir, wire.CheckpointFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrapf(err, "create checkpoint")
	}
	_, err = f.Write(b)
	return errors.Wrapf(errors.Join(err, f.Sync(), f.Close()), "write checkpoint")
}

// saveError explains why gVisor could not make a checkpoint.
func saveError(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		err = errors.Explainf(err, errors.Exhausted, "there is no space for the checkpoint")
		return errors.Remedy(err, "free some on the disk that the data directory is on")
	}
	err = errors.Explainf(err, errors.Unsupported, "gVisor cannot checkpoint the programs of the sandbox")
	return errors.Remedy(err,
		"end the programs that hold devices or outside connections, or take a snapshot of the files")
}

// fileSum returns the size and checksum of a checkpoint's file.
func fileSum(f *os.File) (wire.File, error) {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return wire.File{}, errors.Wrapf(err, "read checkpoint")
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return wire.File{Size: n, Sum: h.Sum32()}, errors.Wrapf(err, "read checkpoint")
}

// linkOrCopy hard-links an immutable file, or copies it to another file system.
func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return errors.Wrapf(err, "open")
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrapf(err, "create")
	}
	_, err = io.Copy(out, in)
	return errors.Wrapf(errors.Join(err, out.Sync(), out.Close()), "copy")
}
