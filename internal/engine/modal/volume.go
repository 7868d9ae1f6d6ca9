package modal

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/engine/modal/uses"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// volumes are Modal's volumes.
type volumes struct {
	e       *Engine
	records records.Volumes
	uses    uses.Set // by name
}

var _ volume.Provider = (*volumes)(nil)

// Create implements volume.Provider. It writes the note before it creates the volume at Modal.
func (v *volumes) Create(ctx context.Context, name string) (volume.Volume, error) {
	n, err := v.records.Find(name)
	if errors.KindOf(err) == errors.NotFound {
		n = records.Volume{Name: name, Modal: v.nameOf(name), Created: time.Now().UTC()}
		err = v.records.Write(n)
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
	if err := v.records.Change(name, func(n *records.Volume) { n.Made = true }); err != nil {
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
	if _, err := v.records.Made(name); err != nil {
		return nil, err
	}
	return &modalVolume{v, name}, nil
}

// Use protects a volume from deletion until release is called, which is idempotent. NotFound for an unknown
// volume.
func (v *volumes) Use(name, who string) (release func(), err error) {
	if release, err = v.uses.Take(name, who); err != nil {
		return nil, err
	}
	if _, err := v.records.Made(name); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// List implements volume.Provider. Sizes are as of the last time that Harvest measured the volume.
func (v *volumes) List(context.Context) ([]volume.Info, error) {
	all, err := v.records.All()
	if err != nil {
		return nil, err
	}
	list := []volume.Info{}
	for _, n := range all {
		list = append(list, volume.Info{Name: n.Name, Created: n.Created, Size: n.Size, Files: n.Files})
	}
	slices.SortFunc(list, func(a, b volume.Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Delete implements volume.Provider.
func (v *volumes) Delete(ctx context.Context, name string) error {
	n, err := v.records.Find(name)
	if err != nil {
		return err
	}
	what := "the volume " + name
	unbar, err := v.uses.Bar(name, what) // from here on, mounting it returns Conflict
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
		return uses.InUse(what, "the sandbox "+cmp.Or(id, holders[0].SandboxID))
	}
	v.e.attendants.end(ctx, n.Modal)
	if _, err := ask(ctx, v.e, "delete a volume", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, v.e.client.Volumes.Delete(ctx, n.Modal, &sdk.VolumeDeleteParams{AllowMissing: true})
	}); err != nil && errors.KindOf(err) != errors.NotFound {
		return errors.Stage(err, "volume")
	}
	return v.records.Remove(name)
}

// plainName matches names that are valid at Modal.
var plainName = pattern.New(`^[A-Za-z0-9._-]{1,40}$`)

// nameOf returns a volume's name at Modal, where all volumes of an environment share one namespace.
func (v *volumes) nameOf(name string) string {
	if plainName().MatchString(name) {
		return v.e.server + "-volume-" + name
	}
	return v.e.server + "-files-" + records.Digest(name)
}

// at looks up a volume at Modal.
func (v *volumes) at(ctx context.Context, n records.Volume) (*sdk.Volume, error) {
	return ask(ctx, v.e, "find a volume", func(ctx context.Context) (*sdk.Volume, error) {
		return v.e.client.Volumes.FromName(ctx, n.Modal, nil)
	})
}

// tagOf returns the tag of sandboxes that mount a volume.
func tagOf(name string) string { return "harvest-volume-" + records.Digest(name)[:16] }

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
		if m.Place.Bucket != "" {
			continue
		}
		if m.Volume == "" {
			return nil, release, errors.Remedy(errors.Newf(errors.Unsupported,
				"directories of this machine cannot be in sandboxes at Modal"), "use a volume")
		}
		if f, again := first[m.Volume]; again {
			if f.ReadOnly != m.ReadOnly {
				return nil, release, errors.Remedy(errors.Newf(errors.Unsupported,
					"at Modal a sandbox can mount a volume either read-only or writable, not both"),
					"mount %s the same way at %s and %s", m.Volume, f.Path, m.Path)
			}
			links = append(links, wire.Mount{Source: f.Path, Path: m.Path})
			continue
		}
		first[m.Volume] = m
		done, err := v.Use(m.Volume, engine.Holder(spec.ID))
		if err != nil {
			return nil, release, err
		}
		releases = append(releases, done)
		n, err := v.records.Made(m.Volume)
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
