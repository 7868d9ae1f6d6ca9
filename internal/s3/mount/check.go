package mount

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Check returns nil if this machine can mount, or an Unsupported error with the reason.
func Check() error { return checkFor(os.Geteuid(), "/dev/fuse") }

func checkFor(uid int, device string) error {
	if uid != 0 {
		if _, err := fusermount(); err != nil {
			return errors.Remedy(errors.Explainf(err, errors.Unsupported,
				"ordinary users cannot mount without the program fusermount3"), "install the package fuse3")
		}
	}
	f, err := os.OpenFile(device, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if uid != 0 && errors.Is(err, syscall.EACCES) { // fusermount3 opens it with the caller's rights
		return errors.Remedy(errors.Explainf(err, errors.Unsupported,
			"ordinary users may not use FUSE on this machine"), "as root: chmod 666 %s", device)
	}
	if err != nil {
		return explainMount(err)
	}
	return f.Close()
}

// fusermount returns the path of the program that mounts for ordinary users.
func fusermount() (string, error) {
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		path, err = exec.LookPath("fusermount")
	}
	return path, err
}

// explainMount explains why a mount failed.
func explainMount(err error) error {
	switch {
	case errors.IsNotExist(err), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return errors.Remedy(errors.Explainf(err, errors.Unsupported, "this machine has no FUSE"),
			"load the module: modprobe fuse; in a container, pass in the device /dev/fuse")
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return errors.Remedy(errors.Explainf(err, errors.Unsupported, "this machine does not let Harvest mount"),
			"in a container, give it the device /dev/fuse and the capability SYS_ADMIN")
	}
	return errors.Explainf(err, errors.Unsupported, "this machine cannot mount")
}
