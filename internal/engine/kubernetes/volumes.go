package kubernetes

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/internal/s3/share"
	"github.com/RelevanceAI/harvest/internal/s3/volsync"
)

// volumes are the volumes of this machine, which pods have copies of: docs/decisions/063. A volume has a bucket of the
// hub, with which its directory here and those in pods are synced. It implements volume.Provider and volume.Renamer.
type volumes struct {
	local *volume.Local
	hub   *share.Hub
	e     *Engine

	mu    sync.Mutex
	state map[string]*bucket // by name of the bucket; guarded by mu
}

// bucket is what this process knows of a volume's bucket.
type bucket struct {
	syncing sync.Mutex // held while the directory of this machine is synced or changed

	mu      sync.Mutex
	changes int // syncs of pods that may have changed the bucket; guarded by mu
	seen    int // of changes, those that the directory of this machine has; -1 before its first sync; guarded by mu
}

var (
	_ volume.Provider = (*volumes)(nil)
	_ volume.Renamer  = (*volumes)(nil)
)

func newVolumes(e *Engine, local *volume.Local, start func(context.Context) (*embedded.Server, error)) *volumes {
	return &volumes{local: local, hub: share.NewHub(start), e: e, state: map[string]*bucket{}}
}

// The files among a volume's notes.
const (
	bucketFile = "bucket" // the name of its bucket, so that it stays when the volume is renamed
	stateDir   = "share"  // the records of syncs
)

func (v *volumes) notes(ctx context.Context, name string) (string, error) {
	vol, err := v.local.Open(ctx, name)
	if err != nil {
		return "", err
	}
	d, ok := vol.(volume.Directory)
	if !ok {
		return "", errors.Errorf("the volume %s is in no directory", name)
	}
	return d.Notes(), nil
}

// bucket returns the bucket of a volume, and makes it if it is missing.
func (v *volumes) bucket(ctx context.Context, name string) (string, *bucket, error) {
	notes, err := v.notes(ctx, name)
	if err != nil {
		return "", nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	file := filepath.Join(notes, bucketFile)
	before, err := os.ReadFile(file)
	if err != nil && !errors.IsNotExist(err) {
		return "", nil, errors.Wrapf(err, "read the name of a volume's bucket")
	}
	id, err := v.hub.Bucket(ctx, string(before))
	if err == nil && id != string(before) {
		if err = os.MkdirAll(notes, 0o700); err == nil {
			err = atomicfile.WriteDurable(file, []byte(id), 0o600)
		}
	}
	if err != nil {
		return "", nil, errors.Wrapf(err, "make the bucket of a volume")
	}
	b := v.state[id]
	if b == nil {
		b = &bucket{seen: -1}
		v.state[id] = b
	}
	return id, b, nil
}

// refresh makes the directory of this machine like the bucket, and the reverse. If change is not nil, it changes the
// directory in between, and the change is shared, even after an error.
func (v *volumes) refresh(ctx context.Context, name string, change func() error) error {
	id, b, err := v.bucket(ctx, name)
	if err != nil {
		return err
	}
	b.syncing.Lock()
	defer b.syncing.Unlock()
	b.mu.Lock()
	fresh := b.seen == b.changes
	b.mu.Unlock()
	if !fresh {
		if err := v.here(ctx, name, id, b); err != nil {
			return err
		}
	}
	if change == nil {
		return nil
	}
	err = change()
	return errors.Join(err, v.here(context.WithoutCancel(ctx), name, id, b))
}

// here syncs the directory of this machine. b.syncing must be held.
func (v *volumes) here(ctx context.Context, name, id string, b *bucket) error {
	notes, err := v.notes(ctx, name)
	if err != nil {
		return err
	}
	b.mu.Lock()
	changes := b.changes
	b.mu.Unlock()
	stats, err := v.hub.Sync(ctx, id, share.Directory{Path: v.local.Path(name), State: filepath.Join(notes, stateDir)})
	if err == nil {
		err = failures(ctx, name, stats)
	}
	if err != nil {
		return errors.Stage(err, "volume")
	}
	b.mu.Lock()
	b.seen = changes
	b.mu.Unlock()
	return nil
}

// failures returns an error if files were not synced.
func failures(ctx context.Context, name string, stats volsync.Stats) error {
	for _, d := range stats.Decided {
		logf.Warnf(ctx, "volume %s: %s changed at two places: %s", name, d.Path, d.Reason)
	}
	if stats.Failed == 0 || len(stats.Failures) == 0 {
		return nil
	}
	f := stats.Failures[0]
	err := errors.Newf(errors.Unavailable, "%d files of the volume are not shared yet, such as %.200q: %s",
		stats.Failed, f.Path, f.Reason)
	if f.Remedy != "" {
		err = errors.Remedy(err, "%s", f.Remedy)
	}
	return err
}

// view is a volume in a pod.
type view struct {
	Volume   string `json:"volume"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// viewsOf are the volumes of a spec, each once.
func viewsOf(spec engine.Spec) []view {
	all := map[string]view{}
	for _, m := range spec.Mounts {
		all[m.Volume] = view{m.Volume, m.ReadOnly}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b view) int { return strings.Compare(a.Volume, b.Volume) })
}

// use protects volumes from deletion until the returned function is called.
func (v *volumes) use(views []view, who string) (release func(), err error) {
	var all []func()
	release = func() {
		for _, r := range all {
			r()
		}
	}
	for _, w := range views {
		r, err := v.local.Use(w.Volume, who)
		if err != nil {
			release()
			return nil, errors.Stage(err, "volume")
		}
		all = append(all, r)
	}
	return release, nil
}

// sync syncs a pod's copy of a volume with the volume's bucket. id is the identity of the pod's agent.
func (v *volumes) sync(ctx context.Context, name, id string, w view) error {
	bucket, b, err := v.bucket(ctx, w.Volume)
	if err != nil {
		return errors.Stage(err, "volume")
	}
	b.mu.Lock()
	unknown := b.seen < 0
	b.mu.Unlock()
	if unknown { // files may have changed while no process with this engine ran
		if err := v.refresh(ctx, w.Volume, nil); err != nil {
			return err
		}
	}
	access, err := v.hub.Access(ctx, bucket)
	if err != nil {
		return errors.Stage(err, "volume")
	}
	conn, err := v.e.connect(ctx, name, id)
	if err != nil {
		return err
	}
	if !w.ReadOnly {
		defer func() {
			b.mu.Lock()
			b.changes++
			b.mu.Unlock()
		}()
	}
	stats, err := pod.Sync(ctx, conn, pod.Volume{Name: w.Volume, ReadOnly: w.ReadOnly, Access: access},
		func(ctx context.Context, l net.Listener) error { return v.hub.Serve(ctx, bucket, l) })
	if err == nil {
		err = failures(ctx, w.Volume, stats)
	}
	return errors.Stage(err, "volume")
}

// syncAll syncs copies of a pod at once.
func (v *volumes) syncAll(ctx context.Context, name, id string, views []view) error {
	var group errgroup.Group
	for _, w := range views {
		group.Go(func() error { return v.sync(ctx, name, id, w) })
	}
	return group.Wait()
}

// pods are those that have a copy of a volume, or all with copies if name is "".
func (v *volumes) pods(name string) map[string]holding {
	v.e.mu.Lock()
	defer v.e.mu.Unlock()
	all := map[string]holding{}
	for podName, h := range v.e.known {
		has := slices.ContainsFunc(h.views, func(w view) bool { return name == "" || w.Volume == name })
		if has && h.id != "" && !h.ending {
			all[podName] = *h
		}
	}
	return all
}

// share syncs the copies of a volume in all pods. Those whose sandbox has ended cannot, or were when it ended.
func (v *volumes) share(ctx context.Context, name string, which func(view) bool) error {
	var failed error
	for podName, h := range v.pods(name) {
		for _, w := range h.views {
			if name != "" && w.Volume != name || !which(w) {
				continue
			}
			if err := v.sync(ctx, podName, h.id, w); err != nil && v.e.end(podName) == nil {
				failed = errors.Join(failed, errors.Wrapf(err, "of sandbox %s", h.id))
			}
		}
	}
	return failed
}

func writable(w view) bool { return !w.ReadOnly }
func each(view) bool       { return true }

// saveEach is how often the files that sandboxes write are copied to this machine while they run: what a pod that is
// lost has written since is lost with it.
const (
	saveEach = 30 * time.Second
	// idleShare is how many times longer than a round of saves the pause after it is, at least: a copy with many files
	// takes long to look through.
	idleShare = 20
)

// save saves what sandboxes write again and again, until ctx ends.
func (v *volumes) save(ctx context.Context) {
	for pause := saveEach; ; {
		select {
		case <-ctx.Done():
			v.finish(context.WithoutCancel(ctx))
			return
		case <-time.After(pause):
		}
		begun := time.Now()
		if err := v.share(ctx, "", writable); err != nil && ctx.Err() == nil {
			logf.Warnf(ctx, "the volumes of pods were not saved: %v", err)
		}
		v.collect(ctx)
		pause = max(saveEach, idleShare*time.Since(begun))
	}
}

// collect makes the directories of this machine like the buckets, for backups, and for engines that read them.
func (v *volumes) collect(ctx context.Context) {
	v.mu.Lock()
	behind := false
	for _, b := range v.state {
		b.mu.Lock()
		behind = behind || b.seen >= 0 && b.seen != b.changes
		b.mu.Unlock()
	}
	v.mu.Unlock()
	if !behind {
		return
	}
	all, err := v.local.List(ctx)
	for _, one := range all {
		if e := v.refreshKnown(ctx, one.Name); e != nil && !errors.Is(e, errors.NotFound) {
			err = e
		}
	}
	if err != nil && ctx.Err() == nil {
		logf.Warnf(ctx, "the volumes of this machine lack the latest changes: %v", err)
	}
}

// refreshKnown is refresh for a volume that this process has shared.
func (v *volumes) refreshKnown(ctx context.Context, name string) error {
	notes, err := v.notes(ctx, name)
	if err != nil {
		return err
	}
	id, err := os.ReadFile(filepath.Join(notes, bucketFile))
	v.mu.Lock()
	_, known := v.state[string(id)]
	v.mu.Unlock()
	if err != nil || !known {
		return nil // no pod has had it
	}
	return v.refresh(ctx, name, nil)
}

// keep saves the last changes of a sandbox whose processes have ended. It fails while the pod can be reached and the
// changes cannot be saved, so that the pod stays until they are.
func (v *volumes) keep(ctx context.Context, name string) error {
	h := v.pods("")[name]
	var views []view
	for _, w := range h.views {
		if !w.ReadOnly {
			views = append(views, w)
		}
	}
	if len(views) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	for {
		err := v.syncAll(limited, name, h.id, views)
		switch p := v.e.pods.get(name); {
		case err == nil || ctx.Err() != nil:
			return err
		case p == nil || endOf(p) != nil || errors.Is(err, errors.Unavailable) && limited.Err() != nil:
			logf.Errorf(ctx, "the last changes of sandbox %s to its volumes are lost with its pod: %v", h.id, err)
			return nil
		case !errors.Is(err, errors.Unavailable):
			return err
		}
		select {
		case <-limited.Done():
		case <-time.After(lookAgain):
		}
	}
}

// keepTime is how long the end of a sandbox waits for a pod that does not answer.
const keepTime = time.Minute

// finish makes the directories of this machine complete.
func (v *volumes) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	v.collect(ctx)
}

const finishTime = 30 * time.Second

// Create implements volume.Provider.
func (v *volumes) Create(ctx context.Context, name string) (volume.Volume, error) {
	return v.of(v.local.Create(ctx, name))
}

// Open implements volume.Provider.
func (v *volumes) Open(ctx context.Context, name string) (volume.Volume, error) {
	return v.of(v.local.Open(ctx, name))
}

func (v *volumes) of(vol volume.Volume, err error) (volume.Volume, error) {
	if err != nil {
		return nil, err
	}
	return &shared{vol, v}, nil
}

// List implements volume.Provider.
func (v *volumes) List(ctx context.Context) ([]volume.Info, error) {
	v.collect(ctx)
	return v.local.List(ctx)
}

// Delete implements volume.Provider.
func (v *volumes) Delete(ctx context.Context, name string) error {
	notes, err := v.notes(ctx, name)
	if err != nil {
		return err
	}
	id, err := os.ReadFile(filepath.Join(notes, bucketFile))
	v.mu.Lock()
	b := v.state[string(id)]
	v.mu.Unlock()
	if b != nil {
		b.syncing.Lock() // no sync stores what is being deleted
		defer b.syncing.Unlock()
	}
	if err := v.local.Delete(ctx, name); err != nil || len(id) == 0 {
		return err
	}
	v.mu.Lock()
	delete(v.state, string(id))
	v.mu.Unlock()
	if err != nil {
		return errors.Wrapf(err, "read the name of a volume's bucket")
	}
	return v.hub.Drop(ctx, string(id))
}

// Rename implements volume.Renamer.
func (v *volumes) Rename(ctx context.Context, old, name string) error {
	return v.local.Rename(ctx, old, name)
}

// shared is a volume of this machine whose changes pods see, and the reverse. It is no volume.Directory: its directory
// may lack the latest changes.
type shared struct {
	volume.Volume
	all *volumes
}

// Admit implements volume.Limited.
func (s *shared) Admit(ctx context.Context, files *os.Root) (volume.Room, error) {
	return volume.Admit(ctx, s.Volume, files)
}

// Commit implements volume.Volume: what sandboxes have written is in the bucket, and on the disk of this machine.
func (s *shared) Commit(ctx context.Context) error {
	if err := s.all.share(ctx, s.Name(), writable); err != nil {
		return err
	}
	if err := s.all.refresh(ctx, s.Name(), nil); err != nil {
		return err
	}
	return s.Volume.Commit(ctx)
}

// Reload implements volume.Volume: sandboxes see what others have committed.
func (s *shared) Reload(ctx context.Context) error {
	if err := s.Volume.Reload(ctx); err != nil {
		return err
	}
	return s.all.share(ctx, s.Name(), each)
}

// CopyIn implements volume.Volume.
func (s *shared) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	return s.all.refresh(ctx, s.Name(), func() error { return s.Volume.CopyIn(ctx, dir, tar) })
}

// Remove implements volume.Volume.
func (s *shared) Remove(ctx context.Context, path string) error {
	return s.all.refresh(ctx, s.Name(), func() error { return s.Volume.Remove(ctx, path) })
}

// CopyOut implements volume.Volume.
func (s *shared) CopyOut(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := s.all.refresh(ctx, s.Name(), nil); err != nil {
		return nil, err
	}
	return s.Volume.CopyOut(ctx, path)
}

// ReadDir implements volume.Volume.
func (s *shared) ReadDir(ctx context.Context, dir string) ([]volume.Entry, error) {
	if err := s.all.refresh(ctx, s.Name(), nil); err != nil {
		return nil, err
	}
	return s.Volume.ReadDir(ctx, dir)
}

// viewsNoted reads the volumes from a pod's annotation.
func viewsNoted(text string) (views []view, err error) {
	if text == "" {
		return nil, nil
	}
	return views, errors.Wrapf(json.Unmarshal([]byte(text), &views), "read the volumes of a pod")
}

// note is the annotation that viewsNoted reads.
func note(views []view) (string, error) {
	if len(views) == 0 {
		return "", nil
	}
	text, err := json.Marshal(views)
	return string(text), errors.Wrapf(err, "note the volumes of a pod")
}
