// Package mounts is the program that mounts the files of a RUN in its sandbox, over the files of the image.
package mounts

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Program is the name of the program (engine.Command.Own).
const Program = "build-mounts"

// Mount is a mount of a RUN.
type Mount struct {
	Path     string
	From     string `json:",omitempty"` // the file or directory that appears at Path; "": a new tmpfs
	Size     int64  `json:",omitempty"` // maximum size of a tmpfs in bytes; 0: that of the kernel
	ReadOnly bool   `json:",omitempty"`
}

// State is the input of an unmount: the changes of a mount.
type State struct {
	Mounted []string             // paths, in order
	Made    []string             // mount points, and directories above them, in order
	Times   map[string]time.Time // of the directories in which they were made
}

// Main executes "mount MOUNTS", which prints a State, or "unmount STATE FILES...", which also removes those files. All
// but the files are JSON.
func Main(_ context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	if err := run(args, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func run(args []string, stdout io.Writer) error {
	if len(args) < 2 {
		return errors.Errorf("usage: %s mount MOUNTS | unmount STATE FILES...", Program)
	}
	switch args[0] {
	case "mount":
		var all []Mount
		if err := json.Unmarshal([]byte(args[1]), &all); err != nil {
			return errors.Wrapf(err, "read the mounts")
		}
		s := &State{Times: map[string]time.Time{}}
		for _, m := range all {
			if err := s.mount(m); err != nil {
				return errors.Join(errors.Wrapf(err, "mount %s", m.Path), s.unmount())
			}
		}
		return errors.Wrapf(json.NewEncoder(stdout).Encode(s), "write the state")
	case "unmount":
		s := &State{}
		if err := json.Unmarshal([]byte(args[1]), s); err != nil {
			return errors.Wrapf(err, "read the state")
		}
		err := s.unmount()
		for _, name := range args[2:] {
			err = errors.Join(err, os.RemoveAll(name))
		}
		return err
	}
	return errors.Errorf("unknown operation %q", args[0])
}

func (s *State) mount(m Mount) error {
	dir := true
	if m.From != "" {
		info, err := os.Stat(m.From)
		if err != nil {
			return err
		}
		dir = info.IsDir()
	}
	if err := s.point(m.Path, dir); err != nil {
		return err
	}
	if m.From == "" {
		options := "mode=1777"
		if m.Size > 0 {
			options += fmt.Sprintf(",size=%d", m.Size)
		}
		if err := unix.Mount("tmpfs", m.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return err
		}
		s.Mounted = append(s.Mounted, m.Path)
		return nil
	}
	if err := unix.Mount(m.From, m.Path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	s.Mounted = append(s.Mounted, m.Path)
	if !m.ReadOnly {
		return nil
	}
	return unix.Mount("", m.Path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// point makes a mount point, and the directories above it, unless they exist.
func (s *State) point(name string, dir bool) error {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(name)
	if err := s.point(above, true); err != nil {
		return err
	}
	if _, again := s.Times[above]; !again && !slices.Contains(s.Made, above) {
		info, err := os.Stat(above)
		if err != nil {
			return err
		}
		s.Times[above] = info.ModTime()
	}
	var err error
	if dir {
		err = os.Mkdir(name, 0o755)
	} else {
		err = os.WriteFile(name, nil, 0o644)
	}
	if err != nil {
		return err
	}
	s.Made = append(s.Made, name)
	return nil
}

// unmount ends the mounts. It removes the mount points that mount made, except for directories with files.
func (s *State) unmount() error {
	var all error
	for _, name := range slices.Backward(s.Mounted) {
		// A process that the command left behind may still use the files.
		if err := unix.Unmount(name, unix.MNT_DETACH); err != nil {
			all = errors.Join(all, errors.Wrapf(err, "unmount %s", name))
		}
	}
	if all != nil {
		return all // a mount point may hold files of the RUN
	}
	for _, name := range slices.Backward(s.Made) {
		if info, err := os.Lstat(name); err != nil || !info.IsDir() && info.Size() > 0 {
			continue
		}
		_ = os.Remove(name) // fails if the RUN put files there, which stay
	}
	for name, at := range s.Times {
		if slices.ContainsFunc(s.Made, func(made string) bool {
			_, err := os.Lstat(made)
			return err == nil && filepath.Dir(made) == name
		}) {
			continue // it has changed
		}
		_ = os.Chtimes(name, time.Time{}, at)
	}
	return nil
}
