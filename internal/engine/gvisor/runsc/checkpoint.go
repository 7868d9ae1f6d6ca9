package runsc

import (
	"os"
	"slices"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/RelevanceAI/harvest/client/errors"
)

// CheckpointFiles are the files of a checkpoint in gVisor's order: the kernel's state, the positions of the
// memory pages, and the pages.
type CheckpointFiles [3]*os.File

// saveArgs and restoreArgs have the JSON of gVisor's types with similar names. Omitted fields are zero there.
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

// uncompressed is the metadata of gVisor's files without compression.
var uncompressed = map[string]string{"compression": "none"}

// Checkpoint writes the state of the sandbox to files. It pauses the sandbox, and resumes it even after
// a failure.
func (s *Sandbox) Checkpoint(files CheckpointFiles) error {
	return s.call(checkpoint, &saveArgs{HavePagesFile: true, Resume: true, Metadata: uncompressed,
		FilePayload: urpc.FilePayload{Files: files[:]}}, nil)
}

// Restore turns the sandbox, in which nothing has been started yet, into one that continues from a checkpoint.
// links are its network, including loopback. containers are those in addition to the root container, as they
// were started. It returns when programs continue. Some of their memory may still have to be read then.
func (s *Sandbox) Restore(files CheckpointFiles, links *Links, containers ...*Container) error {
	links.LoopbackLinks = loopback(s.opts.Config.GVisorGRO).LoopbackLinks
	if err := s.call(setNetworkArgs, links, nil); err != nil {
		return err
	}
	args := &restoreArgs{HavePagesFile: true, Background: true,
		FilePayload: urpc.FilePayload{Files: slices.Clone(files[:])}}
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
		err := checkOutputs(c.Stdio[:]...)
		if err == nil {
			err = s.call(restoreSubcontainer, s.startArgs(c), nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
