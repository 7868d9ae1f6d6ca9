package keeper

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/guest"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/spool"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// restoration is the start of a sandbox from a checkpoint.
type restoration struct {
	dir    string
	init   string // path of the init program's image
	saved  *wire.Saved
	claim  *wire.ClaimArgs
	state  runsc.CheckpointFiles
	pipes  map[string]*plumbing // by command ID
	others []*os.File           // kept files that belong to no command
	links  *runsc.Links
	link   *os.File // the sandbox's end, nil without a network

	checked chan struct{} // closed when the checkpoint's files have been read
	damaged error         // valid once checked is closed
}

// restore boots gVisor with the checkpoint in k.args.Restore, and takes over its commands.
func (k *Keeper) restore(claim *wire.ClaimArgs) (err error) {
	r := &restoration{dir: k.args.Restore, claim: claim, pipes: map[string]*plumbing{}, links: &runsc.Links{},
		init: filepath.Join(k.args.Dir, wire.CheckpointInit), checked: make(chan struct{})}
	if _, err := os.Stat(r.init); err != nil {
		r.init = filepath.Join(r.dir, wire.CheckpointInit)
	}
	defer func() {
		r.close()
		if err != nil {
			err = errors.Stage(errors.Join(err, k.network.Close()), "restore")
		}
	}()
	if r.saved, err = wire.ReadSaved(r.dir); err != nil {
		return err
	}
	_ = k.inits.Close() // the init programs have ended
	go func() {         // during gVisor's start
		r.damaged = r.check()
		close(r.checked)
	}()
	defer func() { <-r.checked }()
	if err := k.network.Set(claim.Network, r.connect); err != nil {
		return err
	}
	kept, err := r.open()
	if err == nil {
		err = k.onThread(func() error {
			args := k.args
			args.Ref, args.Init = r.saved.Ref, r.init
			k.guest, err = guest.BootWith(guest.Options{Args: args, Tools: k.tools}, kept, r.start)
			return err
		})
	}
	if <-r.checked; r.damaged != nil {
		return r.damaged
	}
	if err != nil {
		return restoreError(err)
	}
	k.sandbox = k.guest
	if err := k.guest.Rename(claim.Hostname); err != nil { // the sandbox works under its earlier name, too
		log.Warningf("set the host name of a restored sandbox: %v", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.claimed(claim); err != nil {
		return errors.Join(err, k.onThread(k.guest.Destroy))
	}
	k.guest.Restored()
	k.takeOver(r)
	return nil
}

// connect makes the link, and keeps the sandbox's end.
func (r *restoration) connect() (ours *os.File, err error) {
	if ours, r.link, err = netstack.Pair(); err == nil {
		r.links = guest.LinkTo(r.link)
	}
	return ours, err
}

// check verifies that the checkpoint's files are complete and unchanged.
func (r *restoration) check() error {
	// Images are not read completely.
	for _, name := range []string{r.claim.Root, r.init} {
		if _, err := os.Stat(name); err != nil {
			return wire.Damaged(err)
		}
	}
	for name, want := range r.saved.Files {
		f, err := os.Open(filepath.Join(r.dir, filepath.Base(name)))
		if err != nil {
			return wire.Damaged(err)
		}
		got, err := fileSum(f)
		_ = f.Close()
		if err != nil {
			return err
		}
		if got != want {
			return wire.Damaged(errors.Errorf("%s has %d bytes with the sum %08x, of %d with %08x", name, got.Size,
				got.Sum, want.Size, want.Sum))
		}
	}
	return nil
}

// open creates new files in place of those that the sandbox's programs had open.
func (r *restoration) open() (map[int]*os.File, error) {
	kept := map[int]*os.File{}
	for i, name := range checkpointFiles {
		f, err := os.Open(filepath.Join(r.dir, name))
		if err != nil {
			return nil, wire.Damaged(err)
		}
		r.state[i] = f
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "open null device")
	}
	r.others = append(r.others, null)
	drained, sink, err := os.Pipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	r.others = append(r.others, sink)
	go func() {
		_, _ = io.Copy(io.Discard, drained)
		_ = drained.Close()
	}()
	empty, end, err := os.Pipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	_ = end.Close()
	r.others = append(r.others, empty)
	kept[layer.NullFile], kept[layer.SinkFile], kept[layer.EmptyFile] = null, sink, empty
	for _, c := range r.saved.Commands {
		p, err := newPlumbing(&wire.StartArgs{Stdin: true}, nil)
		if err != nil {
			return nil, err
		}
		r.pipes[c.ID] = p
		// Not earlier: identify makes the files blocking, and gVisor's reads must not block.
		p.files = p.identify(c.Number)
		if !c.Stdin {
			_ = p.stdin.Close()
			p.stdin = nil
		}
		for fd, f := range p.guest {
			kept[layer.FirstFile+filesPerCommand*c.Number+fd] = f
		}
	}
	return kept, nil
}

// start resumes the containers.
func (r *restoration) start(g *guest.Guest) error {
	if <-r.checked; r.damaged != nil { // with damaged files, gVisor may wait forever
		return r.damaged
	}
	g.Taken, g.Root, g.Hostname, g.MachineID = r.saved.Prepared, r.claim.Root, r.saved.Hostname, r.saved.MachineID
	args := initprog.Args(initprog.Path+"/init", g.Hostname, guest.MainFiles(g.Hostname, g.MachineID)...)
	var stdin *os.File
	if g.Taken { // its standard input was a pipe, and gVisor requires one again
		args, stdin = args[:1], r.others[len(r.others)-1]
	}
	spec := g.MainSpec(args, r.claim.Root, nil)
	return g.Start(spec, r.claim.Root, g.MainID(), stdin,
		func(c *runsc.Container) error { return g.Sandbox.Restore(r.state, r.links, c) })
}

// close closes the files that gVisor has received.
func (r *restoration) close() {
	for _, f := range r.state {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, f := range r.others {
		_ = f.Close()
	}
	for _, p := range r.pipes {
		p.closeGuest()
	}
	if r.link != nil {
		_ = r.link.Close()
	}
}

// takeOver adds the checkpoint's commands to this keeper. k.mu is held.
func (k *Keeper) takeOver(r *restoration) {
	k.started = r.saved.Started
	for _, s := range r.saved.Commands {
		p := r.pipes[s.ID]
		c := &command{id: s.ID, number: s.Number, args: s.Args, started: s.Started, pid: s.PID, inside: s.Inside,
			stdin: p.stdin, done: make(chan struct{}),
			files: p.files, out: spool.New(filepath.Join(k.args.Dir, "commands", filepath.Base(s.ID)),
				k.args.OutputBytes)}
		k.commands[c.id] = c
		k.order = append(k.order, c.id)
		go k.tend(c, p)
	}
}

// restoreError explains why gVisor could not start from a checkpoint. gVisor's errors arrive as text.
func restoreError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	switch {
	case errors.RemedyOf(err) != "":
	case strings.Contains(text, "FeatureSet") || strings.Contains(text, "feature set") || strings.Contains(text, "CPU"):
		err = errors.Explainf(err, errors.Unsupported,
			"the checkpoint needs processor features that this machine lacks")
		return errors.Remedy(err, "restore it where it was made, or make another one here")
	case strings.Contains(text, "restore"), strings.Contains(text, "Restore"):
		err = errors.Explainf(err, errors.Invalid, "gVisor cannot restore the checkpoint")
		return errors.Remedy(err, "make another one with this version of Harvest")
	}
	log.Warningf("restore: %v", err)
	return err
}
