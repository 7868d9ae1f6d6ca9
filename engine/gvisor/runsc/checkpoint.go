package runsc

import (
	"os"
	"slices"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/errors"
)

// CheckpointFiles are what a checkpoint consists of, in the order in which gVisor wants them: the kernel's state, where which page of memory is,
// and the pages.
type CheckpointFiles [3]*os.File

// saveArgs and restoreArgs have the JSON of gVisor's types of similar names; what is left out is zero there.
type (
	saveArgs struct {
		HavePagesFile bool `json:"have_pages_file"`
		Resume        bool
		Metadata      map[string]string `json:"metadata"`
		urpc.FilePayload
	}

	restoreArgs struct {
		HavePagesFile  bool
		HaveDeviceFile bool
		Background     bool
		urpc.FilePayload
	}
)

// uncompressed is what gVisor's files say of themselves that have no compression.
var uncompressed = map[string]string{"compression": "none"}

// Checkpoint writes the state of the sandbox to files, and lets it go on, also after a failure. It is paused meanwhile.
func (s *Sandbox) Checkpoint(files CheckpointFiles) error {
	return s.call(checkpoint, &saveArgs{HavePagesFile: true, Resume: true, Metadata: uncompressed, FilePayload: urpc.FilePayload{Files: files[:]}}, nil)
}

// Restore makes the sandbox, in which nothing was started yet, one that goes on where a checkpoint was made. links are its network, its loopback
// included, and containers those beside the root container, as they were started. It returns when programs go on, of whose memory some may yet have to be read.
func (s *Sandbox) Restore(files CheckpointFiles, links *Links, containers ...*Container) error {
	links.LoopbackLinks = loopback(s.opts.Config.GVisorGRO).LoopbackLinks
	if err := s.call(setNetworkArgs, links, nil); err != nil {
		return err
	}
	args := &restoreArgs{HavePagesFile: true, Background: true, FilePayload: urpc.FilePayload{Files: slices.Clone(files[:])}}
	if s.opts.Config.Platform == "kvm" {
		device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return errors.Wrapf(err, "open the platform's device")
		}
		defer device.Close()
		args.HaveDeviceFile, args.Files = true, append(args.Files, device)
	}
	if err := s.call(restore, args, nil); err != nil {
		return err
	}
	for _, c := range containers {
		if err := s.call(createSubcontainer, &createArgs{CID: c.ID}, nil); err != nil {
			return err
		}
		if err := s.call(restoreSubcontainer, s.startArgs(c), nil); err != nil {
			return err
		}
	}
	return nil
}
