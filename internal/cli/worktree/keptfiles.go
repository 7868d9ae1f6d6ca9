package worktree

import (
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
)

// keptFiles is a copy of some files of a directory, from which they can be restored.
type keptFiles struct {
	top   string
	root  *os.Root
	dir   string // with the copies, named by their index
	names []string
	infos []fs.FileInfo // nil for files that did not exist
	links []string
	stays bool // the copies are the only ones left
}

// saveFiles copies files and symbolic links of a directory. Names that do not exist are restored to that.
func saveFiles(top string, names []string) (*keptFiles, error) {
	k := &keptFiles{top: top, names: names}
	var err error
	if k.root, err = os.OpenRoot(top); err == nil {
		k.dir, err = os.MkdirTemp("", "harvest-kept-")
	}
	for i, name := range names {
		var info fs.FileInfo
		link := ""
		if err == nil {
			info, err = k.root.Lstat(name)
		}
		switch {
		case err != nil:
			if errors.IsNotExist(err) || isNotDir(err) {
				info, err = nil, nil
			}
		case info.Mode()&fs.ModeSymlink != 0:
			link, err = k.root.Readlink(name)
		case info.Mode().IsRegular():
			err = k.copyOut(i, name)
		}
		if err != nil {
			k.close()
			return nil, errors.Explainf(err, errors.Unavailable,
				"cannot back up %.200s before the change: %v", name, err)
		}
		k.infos, k.links = append(k.infos, info), append(k.links, link)
	}
	return k, nil
}

func (k *keptFiles) copy(i int) string { return filepath.Join(k.dir, strconv.Itoa(i)) }

func (k *keptFiles) copyOut(i int, name string) error {
	from, err := k.root.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(k.copy(i), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// restore makes the files what they were. On failure the copies stay, and the error names their directory.
func (k *keptFiles) restore() error {
	var all error
	for i, name := range k.names { // files that were made, first: they may be where directories were, and the reverse
		if k.infos[i] == nil {
			if err := k.root.Remove(name); err != nil && !errors.IsNotExist(err) && !isNotDir(err) {
				all = errors.Join(all, err)
			}
		}
	}
	for i, name := range k.names {
		if k.infos[i] != nil && !k.infos[i].IsDir() {
			all = errors.Join(all, k.restoreOne(i, name))
		}
	}
	if all == nil {
		return nil
	}
	k.stays = true
	return errors.Remedy(errors.Explainf(all, errors.Internal,
		"some files could not be restored; their copies are in %s", k.dir),
		"compare them with the files, and copy them back")
}

func (k *keptFiles) restoreOne(i int, name string) error {
	if dir := path.Dir(name); dir != "." {
		if err := k.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := k.root.Remove(name); err != nil && !errors.IsNotExist(err) {
		return err
	}
	if k.links[i] != "" {
		return k.root.Symlink(k.links[i], name)
	}
	from, err := os.Open(k.copy(i))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := k.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, k.infos[i].Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	at := k.infos[i].ModTime()
	return errors.Join(k.root.Chmod(name, k.infos[i].Mode().Perm()), k.root.Chtimes(name, at, at))
}

func (k *keptFiles) close() {
	if k.root != nil {
		k.root.Close()
	}
	if k.dir != "" && !k.stays {
		os.RemoveAll(k.dir)
	}
}

// isNotDir reports whether a path leads through a file.
func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
