package volume

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

// The volume with the state of agents, and its default mount path.
const (
	StateName = "harvest-agent-state"
	StatePath = "/mnt/state"
)

// StateDirs are the initial directories of the state volume.
var StateDirs = []string{".cache", "git-repos", "checkpoints", "workspace", "sessions"}

// Names within a Local's directory. They cannot conflict with volumes, whose names begin with a
// letter or digit.
const (
	trashDir  = ".trash"
	newPrefix = ".new-"
	infoFile  = "volume.json"
	dataDir   = "data"
	notesDir  = "notes"
)

// Local is a Provider that stores each volume as a directory of this machine. Only one process may
// use the directory.
type Local struct {
	path     string
	root     *os.Root
	sweeping tasks.Group

	creating sync.Mutex // held while volumes are counted and one is created

	mu    sync.Mutex
	uses  map[string][]string // guarded by mu; users of a volume, by its name
	quota int                 // guarded by mu; volumes of one owner, 0 for no limit
	files int                 // guarded by mu; files and directories of one volume, 0 for no limit
}

// info is the metadata stored beside the data.
type info struct {
	Created time.Time `json:"created_at"`
}

// OpenDir opens the volumes in the directory path. It creates the directory if missing and closes
// it to other users, since sandboxes can write anything into volumes, including setuid programs. It
// removes the remains of an earlier process in the background.
func OpenDir(path string) (*Local, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, errors.Wrapf(err, "find the volumes' directory")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, tarfs.Explain(err, path)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, tarfs.Explain(err, path)
	}
	l := &Local{path: path, root: root, uses: map[string][]string{}}
	if err := l.prepare(); err != nil {
		root.Close()
		return nil, tarfs.Explain(err, path)
	}
	return l, nil
}

func (l *Local) prepare() error {
	if err := l.root.Chmod(".", 0o700); err != nil {
		return err
	}
	if err := l.root.MkdirAll(trashDir, 0o700); err != nil {
		return err
	}
	names, err := readNames(l.root, ".")
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, newPrefix) {
			if err := l.root.Rename(name, trashDir+"/"+name); err != nil {
				return err
			}
		}
	}
	l.sweep()
	return nil
}

// Close waits until deleted volumes are removed from the disk. Volumes of this Local must no longer
// be used.
func (l *Local) Close() error {
	l.sweeping.Close()
	return l.root.Close()
}

// sweep empties the trash in the background: removing a large tree takes long, and slows the
// creation of files beside it for minutes.
func (l *Local) sweep() {
	l.sweeping.Go(func() {
		names, err := readNames(l.root, trashDir)
		for _, name := range names {
			// Two sweeps may run at once: a file that the other has removed is not an error.
			if e := tarfs.Remove(l.root, trashDir+"/"+name); e != nil && errors.KindOf(e) != errors.NotFound {
				err = e
			}
		}
		if err != nil {
			logf.Errorf(context.Background(), "empty the volumes' trash, to be tried again at the next start: %v", err)
		}
	})
}

// Path returns the directory of the volume's files, for the engine that mounts it.
func (l *Local) Path(name string) string { return filepath.Join(l.path, name, dataDir) }

// Use marks the volume as used by who until release is called. release may be called more than
// once. Use returns NotFound if the volume does not exist.
func (l *Local) Use(name, who string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.find(name); err != nil {
		return nil, err
	}
	l.uses[name] = append(l.uses[name], who)
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		users := l.uses[name]
		if i := slices.Index(users, who); i >= 0 {
			l.uses[name] = slices.Delete(users, i, i+1)
		}
		if len(l.uses[name]) == 0 {
			delete(l.uses, name)
		}
	}), nil
}

// Create implements Provider. The volume appears complete or not at all.
func (l *Local) Create(ctx context.Context, name string) (Volume, error) {
	v, err := l.Open(ctx, name)
	if errors.KindOf(err) != errors.NotFound {
		return v, err
	}
	l.creating.Lock()
	defer l.creating.Unlock()
	if err := l.checkQuota(name); err != nil {
		return nil, err
	}
	temp := newPrefix + rand.Text()
	if err := l.make(temp, name); err != nil {
		return nil, errors.Join(tarfs.Explain(err, name), ignoreNotFound(tarfs.Remove(l.root, temp)))
	}
	fault.Point("volume.made")
	err = l.root.Rename(temp, name)
	if errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOTEMPTY) { // another caller was faster
		if err := tarfs.Remove(l.root, temp); err != nil {
			return nil, err
		}
		return l.Open(ctx, name)
	}
	if err != nil {
		return nil, errors.Join(tarfs.Explain(err, name), ignoreNotFound(tarfs.Remove(l.root, temp)))
	}
	if err := syncDir(l.root, "."); err != nil {
		return nil, tarfs.Explain(err, name)
	}
	logf.Infof(ctx, "volume %s created", name)
	return &local{l: l, name: name}, nil
}

// ignoreNotFound is for removing files that may not exist.
func ignoreNotFound(err error) error {
	if errors.KindOf(err) == errors.NotFound {
		return nil
	}
	return err
}

// make creates the directory of a volume under the name temp.
func (l *Local) make(temp, name string) error {
	dirs := []string{temp, temp + "/" + dataDir}
	if name == StateName {
		for _, d := range StateDirs {
			dirs = append(dirs, temp+"/"+dataDir+"/"+d)
		}
	}
	for _, d := range dirs {
		if err := l.root.Mkdir(d, freshMode); err != nil {
			return err
		}
		if err := l.root.Chmod(d, freshMode); err != nil { // independent of the umask
			return err
		}
	}
	text, err := json.Marshal(info{Created: time.Now().UTC()})
	if err != nil {
		return err
	}
	f, err := l.root.OpenFile(temp+"/"+infoFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close(), syncDir(l.root, temp))
}

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Open implements Provider.
func (l *Local) Open(_ context.Context, name string) (Volume, error) {
	if err := l.find(name); err != nil {
		return nil, err
	}
	return &local{l: l, name: name}, nil
}

// find returns nil if a volume of that name exists.
func (l *Local) find(name string) error {
	if err := CheckStored(name); err != nil {
		return err
	}
	stat, err := l.root.Lstat(name)
	if errors.IsNotExist(err) || err == nil && !stat.IsDir() {
		return NoVolume(name)
	}
	return errors.Wrapf(err, "look for volume %s", name)
}

// NoVolume returns the error for a missing volume. name is the name stored by a Provider.
func NoVolume(name string) error {
	return errors.Remedy(errors.Newf(errors.NotFound, "there is no volume %q", shown(name)),
		"list the volumes, or create it")
}

// List implements Provider. The sizes of very large volumes are lower bounds.
func (l *Local) List(ctx context.Context) ([]Info, error) {
	names, err := readNames(l.root, ".")
	if err != nil {
		return nil, errors.Wrapf(err, "list the volumes")
	}
	list := []Info{}
	for _, name := range names {
		if l.find(name) != nil { // not a volume
			continue
		}
		one := Info{Name: name, Created: l.created(name)}
		one.Size, one.Files, err = l.measure(ctx, name)
		if err != nil && !errors.IsNotExist(err) { // deleted meanwhile
			return nil, errors.Wrapf(err, "measure volume %s", name)
		}
		if err == nil {
			list = append(list, one)
		}
	}
	return list, nil
}

// created returns the creation time of a volume. If its metadata is damaged, created returns the
// mtime of the directory, so that the data stays visible.
func (l *Local) created(name string) time.Time {
	var about info
	text, err := l.root.ReadFile(name + "/" + infoFile)
	if err == nil && json.Unmarshal(text, &about) == nil && !about.Created.IsZero() {
		return about.Created
	}
	if stat, err := l.root.Lstat(name); err == nil {
		return stat.ModTime().UTC()
	}
	return time.Time{}
}

// Delete implements Provider. The volume disappears at once, its files are removed in the
// background.
func (l *Local) Delete(ctx context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.find(name); err != nil {
		return err
	}
	// The Fleet and the engine hold it for the same sandbox.
	if users := slices.Compact(slices.Sorted(slices.Values(l.uses[name]))); len(users) > 0 {
		return errors.Remedy(errors.Newf(errors.Conflict, "volume %q is in use by %s", shown(name),
			strings.Join(users, ", ")), "end its users first")
	}
	if err := l.root.Rename(name, fmt.Sprintf("%s/%s-%s", trashDir, name, rand.Text())); err != nil {
		return tarfs.Explain(err, name)
	}
	fault.Point("volume.trashed")
	logf.Infof(ctx, "volume %s deleted", name)
	l.sweep()
	return nil
}

// readNames returns the sorted names in a directory.
func readNames(root *os.Root, dir string) ([]string, error) {
	d, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
