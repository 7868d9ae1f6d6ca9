package volume

import (
	"os"
	"slices"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// freshMode is the mode of a new volume's directory and of its initial directories.
const freshMode = 0o755

// Give changes the owner of a fresh volume, whose files are in dir, and of its initial directories.
// A volume is fresh while it has no files and still has the owner and mode of Create. Other volumes
// keep their owners.
func Give(dir string, uid, gid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Wrapf(err, "open a volume")
	}
	defer root.Close()
	names, err := readNames(root, ".")
	if err != nil {
		return errors.Wrapf(err, "list a volume")
	}
	own := append(names, ".") // root last: a volume that was only partly given is still fresh
	for _, name := range own {
		if name != "." && !slices.Contains(StateDirs, name) {
			return nil
		}
		if fresh, err := untouched(root, name, name != "."); err != nil || !fresh {
			return err
		}
	}
	for _, name := range own {
		if err := root.Lchown(name, uid, gid); err != nil {
			return errors.Wrapf(err, "change the owner of a volume")
		}
	}
	return nil
}

// untouched reports whether a directory has its initial owner and mode, and is empty if empty is
// set.
func untouched(root *os.Root, name string, empty bool) (bool, error) {
	stat, err := root.Lstat(name)
	if err != nil {
		return false, errors.Wrapf(err, "look at a volume")
	}
	sys, ok := stat.Sys().(*syscall.Stat_t)
	if !ok || !stat.IsDir() || int(sys.Uid) != os.Geteuid() || stat.Mode().Perm() != freshMode ||
		stat.Mode()&(os.ModeSetgid|os.ModeSticky) != 0 {
		return false, nil
	}
	if !empty {
		return true, nil
	}
	names, err := readNames(root, name)
	return len(names) == 0, errors.Wrapf(err, "list a volume")
}
