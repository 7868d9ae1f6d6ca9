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

// State is the input of an unmount: the changes of all mounts, in order. Mount points may be in earlier mounts.
type State struct{ Steps []Step }

// Step has the changes of one mount.
type Step struct {
	Mounted string               // path; "" if the mount failed
	Made    []string             // the mount point, and directories above it, in order
	Times   map[string]time.Time // of the directory in which the first was made
}

// Main executes "mount MOUNTS", which prints a State, "unmount STATE FILES...", which also removes those files, or
// "clear DIRECTORIES...", which removes empty directories on which file systems of the sandbox itself are mounted. The
// mounts and the state are JSON.
func Main(_ context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	if err := run(args, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func run(args []string, stdout io.Writer) error {
	if len(args) < 2 {
		return errors.Errorf("usage: %s mount MOUNTS | unmount STATE FILES... | clear DIRECTORIES...", Program)
	}
	switch args[0] {
	case "mount":
		var all []Mount
		if err := json.Unmarshal([]byte(args[1]), &all); err != nil {
			return errors.Wrapf(err, "read the mounts")
		}
		s := &State{}
		for _, m := range all {
			step, err := mount(m)
			s.Steps = append(s.Steps, step)
			if err != nil {
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
	case "clear":
		return clearDirs(args[1:])
	}
	return errors.Errorf("unknown operation %q", args[0])
}

// clearDirs ends the mounts on directories, and removes those that are empty. The directories above keep their times.
func clearDirs(dirs []string) error {
	for _, dir := range dirs {
		above, err := os.Stat(filepath.Dir(dir))
		if err == nil {
			err = unix.Unmount(dir, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return errors.Wrapf(err, "unmount %s", dir)
		}
		if err := os.Remove(dir); err == nil {
			_ = os.Chtimes(filepath.Dir(dir), time.Time{}, above.ModTime())
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

func mount(m Mount) (s Step, err error) {
	dir := true
	if m.From != "" {
		info, err := os.Stat(m.From)
		if err != nil {
			return s, err
		}
		dir = info.IsDir()
	}
	s.Times = map[string]time.Time{}
	if err := s.point(m.Path, dir); err != nil {
		return s, err
	}
	if m.From == "" {
		options := "mode=1777"
		if m.Size > 0 {
			options += fmt.Sprintf(",size=%d", m.Size)
		}
		err = unix.Mount("tmpfs", m.Path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	} else {
		err = unix.Mount(m.From, m.Path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return s, err
	}
	s.Mounted = m.Path
	if m.From == "" || !m.ReadOnly {
		return s, nil
	}
	return s, unix.Mount("", m.Path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// point makes a mount point, and the directories above it, unless they exist.
func (s *Step) point(name string, dir bool) error {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(name)
	if err := s.point(above, true); err != nil {
		return err
	}
	if !slices.Contains(s.Made, above) {
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

// unmount ends the mounts, last first. It removes the mount points that mount made, except for directories with files.
func (s *State) unmount() error {
	for _, step := range slices.Backward(s.Steps) {
		if step.Mounted != "" {
			// A process that the command left behind may still use the files.
			if err := unix.Unmount(step.Mounted, unix.MNT_DETACH); err != nil {
				return errors.Wrapf(err, "unmount %s", step.Mounted) // a mount point may hold files of the RUN
			}
		}
		step.clear()
	}
	return nil
}

// clear removes the mount point, and the directories above it that mount made.
func (s Step) clear() {
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
}
