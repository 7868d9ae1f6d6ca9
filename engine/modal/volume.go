package modal

import (
	"cmp"
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/atomicfile"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/volume"
)

// volumes are Modal's volumes. This machine keeps notes of them, because the SDK cannot list them.
type volumes struct {
	e    *Engine
	dir  string
	uses uses // by name

	mu sync.Mutex // held while notes are written or read
}

// volumeNote is the stored note of a volume.
type volumeNote struct {
	Name    string    `json:"name"`  // as in volume.Stored
	Modal   string    `json:"modal"` // its name at Modal
	Created time.Time `json:"created_at"`
	Made    bool      `json:"made,omitempty"` // Modal has it, with its initial directories
	// Size and Files are as of the last time that Harvest measured the volume.
	Size  int64 `json:"size_bytes"`
	Files int64 `json:"files"`
}

var _ volume.Provider = (*volumes)(nil)

// Create implements volume.Provider. It writes the note before it creates the volume at Modal.
func (v *volumes) Create(ctx context.Context, name string) (volume.Volume, error) {
	n, err := v.find(name)
	if errors.KindOf(err) == errors.NotFound {
		n = volumeNote{Name: name, Modal: v.nameOf(name), Created: time.Now().UTC()}
		err = v.write(n)
	}
	if err != nil {
		return nil, err
	}
	vol := &modalVolume{v, name}
	if n.Made {
		return vol, nil
	}
	if _, err := ask(ctx, v.e, "make a volume", func(ctx context.Context) (*sdk.Volume, error) {
		return v.e.client.Volumes.FromName(ctx, n.Modal, &sdk.VolumeFromNameParams{CreateIfMissing: true})
	}); err != nil {
		return nil, errors.Stage(err, "volume")
	}
	if name == volume.StateName {
		if err := vol.copyIn(ctx, n, "", directories(volume.StateDirs)); err != nil {
			return nil, errors.Stage(err, "volume")
		}
	}
	if err := v.change(name, func(n *volumeNote) { n.Made = true }); err != nil {
		return nil, err
	}
	logf.Infof(ctx, "volume %s created, which Modal calls %s", name, n.Modal)
	return vol, nil
}

// directories returns a tar stream with directories of these names.
func directories(names []string) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		// A bytes.Buffer never fails.
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: time.Now()})
	}
	_ = w.Close()
	return &b
}

// Open implements volume.Provider.
func (v *volumes) Open(_ context.Context, name string) (volume.Volume, error) {
	if _, err := v.made(name); err != nil {
		return nil, err
	}
	return &modalVolume{v, name}, nil
}

// Use protects a volume from deletion until release is called, which is idempotent. NotFound for an unknown
// volume.
func (v *volumes) Use(name, who string) (release func(), err error) {
	if release, err = v.uses.take(name, who); err != nil {
		return nil, err
	}
	if _, err := v.made(name); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// List implements volume.Provider. Sizes are as of the last time that Harvest measured the volume.
func (v *volumes) List(context.Context) ([]volume.Info, error) {
	files, err := filepath.Glob(filepath.Join(v.dir, "*.json"))
	if err != nil {
		return nil, errors.Wrapf(err, "list the volumes")
	}
	list := []volume.Info{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, file := range files {
		n, err := readNote(file)
		if errors.IsNotExist(err) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if n.Made {
			list = append(list, volume.Info{Name: n.Name, Created: n.Created, Size: n.Size, Files: n.Files})
		}
	}
	slices.SortFunc(list, func(a, b volume.Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Delete implements volume.Provider.
func (v *volumes) Delete(ctx context.Context, name string) error {
	n, err := v.find(name)
	if err != nil {
		return err
	}
	what := "the volume " + name
	unbar, err := v.uses.bar(name, what) // from here on, mounting it returns Conflict
	if err != nil {
		return err
	}
	defer unbar()
	holders, err := v.holders(ctx, name)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		id, err := ask(ctx, v.e, "look at a sandbox",
			func(ctx context.Context) (string, error) { return v.e.idOf(ctx, holders[0]) })
		if err != nil {
			return err
		}
		return inUse(what, "the sandbox "+cmp.Or(id, holders[0].SandboxID))
	}
	v.e.attendants.end(ctx, n.Modal)
	if _, err := ask(ctx, v.e, "delete a volume", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.e.client.Volumes.Delete(ctx, n.Modal, &sdk.VolumeDeleteParams{AllowMissing: true})
	}); err != nil && errors.KindOf(err) != errors.NotFound {
		return errors.Stage(err, "volume")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := os.Remove(v.path(name)); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "forget a volume")
	}
	return nil
}

// plainName matches names that are valid at Modal.
var plainName = pattern.New(`^[A-Za-z0-9._-]{1,40}$`)

// nameOf returns a volume's name at Modal, where all volumes of an environment share one namespace.
func (v *volumes) nameOf(name string) string {
	if plainName().MatchString(name) {
		return v.e.server + "-volume-" + name
	}
	return v.e.server + "-files-" + digestText(name)
}

// digestText returns a valid name for any text.
func digestText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

func (v *volumes) path(name string) string { return filepath.Join(v.dir, digestText(name)+".json") }

func readNote(file string) (n volumeNote, err error) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, errors.Wrapf(err, "read the note of a volume")
}

// find returns the note of a volume, which Modal may not have yet. Invalid for a bad name.
func (v *volumes) find(name string) (volumeNote, error) {
	if err := volume.CheckStored(name); err != nil {
		return volumeNote{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := readNote(v.path(name))
	if errors.IsNotExist(err) {
		return n, volume.NoVolume(name)
	}
	return n, err
}

// made returns the note of a volume that Modal has.
func (v *volumes) made(name string) (volumeNote, error) {
	n, err := v.find(name)
	if err == nil && !n.Made {
		err = volume.NoVolume(name)
	}
	return n, err
}

func (v *volumes) write(n volumeNote) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.writeLocked(n)
}

func (v *volumes) writeLocked(n volumeNote) error {
	data, err := json.Marshal(n)
	if err == nil {
		err = atomicfile.Write(v.path(n.Name), data, 0o600)
	}
	return errors.Wrapf(err, "note a volume")
}

// change updates a note. It does not recreate a deleted one.
func (v *volumes) change(name string, change func(*volumeNote)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, err := readNote(v.path(name))
	if errors.IsNotExist(err) {
		return volume.NoVolume(name)
	}
	if err != nil {
		return err
	}
	change(&n)
	return v.writeLocked(n)
}

// at looks up a volume at Modal.
func (v *volumes) at(ctx context.Context, n volumeNote) (*sdk.Volume, error) {
	return ask(ctx, v.e, "find a volume", func(ctx context.Context) (*sdk.Volume, error) {
		return v.e.client.Volumes.FromName(ctx, n.Modal, nil)
	})
}

// tagOf returns the tag of sandboxes that mount a volume.
func tagOf(name string) string { return "harvest-volume-" + digestText(name)[:16] }

// holders returns the running sandboxes of this installation that mount the volume.
func (v *volumes) holders(ctx context.Context, name string) ([]*sdk.Sandbox, error) {
	return v.e.tagged(ctx, tagOf(name))
}

// mount adds a sandbox's volumes to params. Modal mounts each volume only once: links are the additional paths
// of those that a sandbox mounts repeatedly. release ends the protection of the
// volumes against deletion. From then on, the running sandbox itself protects those that it mounts.
func (v *volumes) mount(ctx context.Context, spec engine.Spec,
	params *sdk.SandboxCreateParams) (links []wire.Mount, release func(), err error) {
	var releases []func()
	release = func() {
		for _, r := range releases {
			r()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	first := map[string]engine.Mount{}
	for _, m := range spec.Mounts {
		if m.Path == programDir || strings.HasPrefix(m.Path, programDir+"/") {
			return nil, release, errors.Remedy(errors.Newf(errors.Invalid,
				"nothing can be mounted at %s, where Harvest's own program is", m.Path), "choose another path")
		}
		if m.Bucket.Name != "" {
			continue
		}
		if m.Volume == "" {
			return nil, release, errors.Remedy(errors.Newf(errors.Unsupported,
				"directories of this machine cannot be in sandboxes at Modal"), "use a volume")
		}
		if f, again := first[m.Volume]; again {
			if f.ReadOnly != m.ReadOnly {
				return nil, release, errors.Remedy(errors.Newf(errors.Unsupported,
					"at Modal a sandbox has a volume either read-only or writable"),
					"mount %s the same way at %s and %s", m.Volume, f.Path, m.Path)
			}
			links = append(links, wire.Mount{Source: f.Path, Path: m.Path})
			continue
		}
		first[m.Volume] = m
		done, err := v.Use(m.Volume, "the sandbox "+spec.ID)
		if err != nil {
			return nil, release, err
		}
		releases = append(releases, done)
		n, err := v.made(m.Volume)
		if err != nil {
			return nil, release, err
		}
		at, err := v.at(ctx, n)
		if err != nil {
			return nil, release, errors.Stage(err, "volume")
		}
		if params.Volumes == nil {
			params.Volumes = map[string]*sdk.Volume{}
		}
		params.Volumes[m.Path] = at.WithMountOptions(&sdk.VolumeMountOptionsParams{ReadOnly: &m.ReadOnly})
		params.Tags[tagOf(m.Volume)] = "yes"
	}
	return links, release, nil
}
