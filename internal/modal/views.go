package modal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/modal/trees"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// view is a sandbox's view of a volume: a private copy. It is committed when the sandbox requests it or ends,
// and gets the commits of others when the sandbox requests that.
type view struct {
	Volume   string `json:"volume"`
	Sub      string `json:"sub"`     // the part of the volume, "." for all
	Private  string `json:"private"` // the volume that holds the copy
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`

	base trees.Tree // guarded by views.lock of the volume; the last common state of both
}

func (v *view) mount() spec.Mount {
	return spec.Mount{Name: v.Private, Path: v.Path, ReadOnly: v.ReadOnly}
}

// ephemeral is how long an unnamed volume or queue lives without a heartbeat. Clients send one every five
// minutes.
const ephemeral = 15 * time.Minute

// sweepVolumes removes unnamed volumes whose clients are gone. The heartbeats before a restart are unknown, so
// those volumes count as heard of now.
func (s *Server) sweepVolumes(ctx context.Context) {
	all, err := s.opts.Volumes.List(ctx)
	if err != nil {
		logf.Errorf(ctx, "look for unused volumes: %v", err)
	}
	for _, v := range all {
		if _, name, _ := strings.Cut("~"+v.Name, looseVolume); name == "" {
			continue
		}
		s.volumes.mu.Lock()
		if s.volumes.heard == nil {
			s.volumes.heard = map[string]time.Time{}
		}
		heard, ok := s.volumes.heard[v.Name]
		if !ok {
			heard = time.Now()
			s.volumes.heard[v.Name] = heard
		}
		s.volumes.mu.Unlock()
		if time.Since(heard) > ephemeral {
			if err := s.opts.Volumes.Delete(ctx, v.Name); err != nil {
				logf.Debugf(ctx, "remove an unused volume: %v", err) // a sandbox uses it
			}
		}
	}
}

// views manages the copies of volumes.
type views struct {
	settled chan struct{} // closed once the volumes of sandboxes that ended while no server ran are committed

	mu    sync.Mutex
	locks map[string]*sync.Mutex // guarded by mu; by account and volume: held while the volume is read or written
	heard map[string]time.Time   // guarded by mu; by stored volume name: the client's last heartbeat
}

func (vs *views) lock(acc, name string) *sync.Mutex {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.locks == nil {
		vs.locks = map[string]*sync.Mutex{}
	}
	key := acc + " " + name
	if vs.locks[key] == nil {
		vs.locks[key] = &sync.Mutex{}
	}
	return vs.locks[key]
}

// alive records a heartbeat of the client of an unnamed volume.
func (vs *views) alive(acc, name string) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.heard == nil {
		vs.heard = map[string]time.Time{}
	}
	if strings.HasPrefix(name, looseVolume) {
		vs.heard[volume.Stored(owner(acc), name)] = time.Now()
	}
}

// enter makes the copies for a new sandbox.
func (vs *views) enter(ctx context.Context, s *Server, acc string, mounts []*pb.VolumeMount) (made []*view, err error) {
	if len(mounts) == 0 {
		return nil, nil
	}
	if err := vs.await(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.discardViews(ctx, acc, made)
			made = nil
		}
	}()
	for _, m := range mounts {
		name, err := s.ids.Name(acc, m.GetVolumeId())
		if err != nil {
			return made, err
		}
		sub, err := subPath(m.GetSubPath())
		if err != nil {
			return made, err
		}
		v := &view{Volume: name, Sub: sub, Private: viewVolume + strings.ToLower(rand.Text()),
			Path: strings.TrimRight(m.GetMountPath(), "/"), ReadOnly: m.GetReadOnly()}
		p := s.provider(acc)
		if _, err := p.Open(ctx, name); err != nil {
			return made, missing("Volume", m.GetVolumeId())
		}
		if _, err := p.Create(ctx, v.Private); err != nil {
			return made, err
		}
		made = append(made, v)
		if err := s.pull(ctx, acc, v); err != nil {
			return made, err
		}
	}
	return made, nil
}

// discardViews removes copies that no sandbox uses.
func (s *Server) discardViews(ctx context.Context, acc string, made []*view) {
	for _, v := range made {
		if err := s.provider(acc).Delete(context.WithoutCancel(ctx), v.Private); err != nil &&
			errors.KindOf(err) != errors.NotFound {
			logf.Errorf(ctx, "remove the copy of a volume: %v", err)
			continue
		}
		// A copy cannot be committed without its record, so that goes last.
		if err := s.opts.Records.Delete(context.WithoutCancel(ctx), records.View, v.record()); err != nil {
			logf.Errorf(ctx, "remove the record of a volume's copy: %v", err)
		}
	}
}

// roots opens the volume, or the part that the view shows, and the copy.
func (s *Server) roots(ctx context.Context, acc string, v *view) (whole, private *os.Root, err error) {
	p := s.provider(acc)
	if whole, err = openVolume(ctx, p, v.Volume); err != nil {
		return nil, nil, err
	}
	if v.Sub != "." {
		defer whole.Close()
		if err := whole.MkdirAll(v.Sub, 0o777); err != nil {
			return nil, nil, errors.Explainf(err, errors.Invalid, "volume %s: %.200q is not a directory",
				v.Volume, v.Sub)
		}
		if whole, err = whole.OpenRoot(v.Sub); err != nil {
			return nil, nil, errors.Explainf(err, errors.Invalid, "volume %s: %.200q is not a directory",
				v.Volume, v.Sub)
		}
	}
	if private, err = openVolume(ctx, p, v.Private); err != nil {
		return nil, nil, errors.Join(err, whole.Close())
	}
	return whole, private, nil
}

func openVolume(ctx context.Context, p volume.Provider, name string) (*os.Root, error) {
	v, err := p.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	dir := ""
	if d, ok := v.(volume.Directory); ok {
		dir = d.Dir()
	}
	if dir == "" {
		return nil, errors.Newf(errors.Unsupported, "the files of volumes are not on this machine")
	}
	root, err := os.OpenRoot(dir)
	return root, errors.Wrapf(err, "open the volume %s", name)
}

// pull makes the copy equal to the volume.
func (s *Server) pull(ctx context.Context, acc string, v *view) error {
	l := s.volumes.lock(acc, v.Volume)
	l.Lock()
	defer l.Unlock()
	whole, private, err := s.roots(ctx, acc, v)
	if err != nil {
		return err
	}
	defer whole.Close()
	defer private.Close()
	return s.pullLocked(ctx, v, whole, private)
}

func (s *Server) pullLocked(ctx context.Context, v *view, whole, private *os.Root) error {
	theirs, err := trees.Scan(ctx, whole)
	if err != nil {
		return err
	}
	ours, err := trees.Scan(ctx, private)
	if err != nil {
		return err
	}
	if err := trees.Copy(ctx, private, whole, ours, theirs, v.ReadOnly); err != nil {
		return err
	}
	if v.base, err = trees.Scan(ctx, private); err != nil {
		return err
	}
	return s.keepBase(ctx, v)
}

func (v *view) record() records.ID { return records.ID{ID: v.Private} }

// keepBase records the last common state of a copy and its volume for a later server.
func (s *Server) keepBase(ctx context.Context, v *view) error {
	data, err := json.Marshal(v.base)
	if err == nil {
		err = s.opts.Records.Put(ctx, records.Record{Kind: records.View, ID: v.record(), Data: data})
	}
	return errors.Wrapf(err, "record the contents of a volume")
}

// loadBase reads that record.
func (s *Server) loadBase(ctx context.Context, v *view) error {
	if v.base != nil {
		return nil
	}
	found, err := s.opts.Records.Get(ctx, records.View, v.record())
	if err == nil && len(found) == 0 {
		err = errors.Newf(errors.Internal, "the copy %s has no record", v.Private)
	}
	if err == nil {
		err = json.Unmarshal(found[0].Data, &v.base)
	}
	return errors.Wrapf(err, "read the contents of a volume")
}

// commit writes the copy's changes since the last common state to the volume. The last writer wins.
func (s *Server) commit(ctx context.Context, acc string, v *view, reload bool) error {
	l := s.volumes.lock(acc, v.Volume)
	l.Lock()
	defer l.Unlock()
	whole, private, err := s.roots(ctx, acc, v)
	if err != nil {
		return err
	}
	defer whole.Close()
	defer private.Close()
	if err := s.loadBase(ctx, v); err != nil {
		return err
	}
	if !v.ReadOnly {
		ours, err := trees.Scan(ctx, private)
		if err != nil {
			return err
		}
		if err := trees.Copy(ctx, whole, private, v.base, ours, false); err != nil {
			return err
		}
		v.base = ours
		if err := s.keepBase(ctx, v); err != nil {
			return err
		}
	}
	if !reload {
		return nil
	}
	return s.pullLocked(ctx, v, whole, private)
}

// leave commits the copy of an ended sandbox and removes it. If the copy is gone, an earlier server has
// committed it. If the volume is gone, the writes are discarded.
func (vs *views) leave(ctx context.Context, b *box, v *view) error {
	if err := b.s.commit(ctx, b.account, v, false); err != nil && errors.KindOf(err) != errors.NotFound {
		return err
	}
	b.s.discardViews(ctx, b.account, []*view{v})
	return nil
}
