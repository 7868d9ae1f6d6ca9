package volume

import (
	"os"
	"slices"
	"syscall"

	"github.com/RelevanceAI/harvest/errors"
)

// freshMode is the mode of a volume's directory, and of those that it has from the beginning.
const freshMode = 0o755

// Give changes the owner of a fresh volume whose files are in dir, with the directories that it has from the beginning. A volume is fresh while
// it has no files and its owner and mode are those that Create gave it. Other volumes keep their owners.
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
	own := append(names, ".") // the root last: a volume of which only a part was given is still fresh
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

// untouched reports whether a directory has the owner and the mode with which it was made, and nothing in it if empty is set.
func untouched(root *os.Root, name string, empty bool) (bool, error) {
	stat, err := root.Lstat(name)
	if err != nil {
		return false, errors.Wrapf(err, "look at a volume")
	}
	sys, ok := stat.Sys().(*syscall.Stat_t)
	if !ok || !stat.IsDir() || int(sys.Uid) != os.Geteuid() || stat.Mode().Perm() != freshMode || stat.Mode()&(os.ModeSetgid|os.ModeSticky) != 0 {
		return false, nil
	}
	if !empty {
		return true, nil
	}
	names, err := readNames(root, name)
	return len(names) == 0, errors.Wrapf(err, "list a volume")
}
