package modal

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/image"
)

// SnapshotImage implements engine.Imager. Modal keeps the image until it is deleted.
func (s *Sandbox) SnapshotImage(ctx context.Context, parent image.Image,
	opts image.SnapshotOptions) (image.Image, error) {
	if opts.Path != "" {
		return image.Image{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"the engine modal has no snapshots of directories"),
			"take one of the whole sandbox, or copy the directory out")
	}
	if err := checkNames(opts.Names); err != nil {
		return image.Image{}, err
	}
	begin := time.Now()
	id, err := s.capture(ctx, sdk.NoExpiryTTL)
	if err != nil {
		return image.Image{}, err
	}
	spec := image.Spec{Owner: opts.Owner, Parent: parent.ID, Layer: id}
	digest, err := spec.Digest(nil)
	if err != nil {
		return image.Image{}, err
	}
	snap := &image.Snapshot{Suspension: opts.Suspension,
		Lineage: []image.Origin{{Image: parent.ID, Sandbox: opts.Sandbox, Time: time.Now().UTC()}}}
	if parent.Snapshot != nil {
		snap.Lineage = append(slices.Clone(parent.Snapshot.Lineage), snap.Lineage...)
	}
	img, err := s.e.images.records.Named(records.Image{Modal: id, Image: image.Image{
		ID: "img_" + strings.TrimPrefix(digest, "sha256:")[:16], Digest: digest, Names: []string{}, Spec: spec,
		Config: parent.Config,
		Built:  time.Now().UTC(), BuildTime: time.Since(begin), Parts: slices.Clone(parent.Parts),
		Missing: slices.Clone(parent.Missing), Snapshot: snap,
	}}, opts.Names)
	if err != nil {
		return image.Image{}, errors.Join(err, s.e.forget(context.WithoutCancel(ctx), id))
	}
	logf.Infof(ctx, "image %s is a snapshot of sandbox %s, which Modal calls %s", img.ID, opts.Sandbox, id)
	return img, nil
}

// capture makes Modal take an image of the files, which Modal keeps for ttl, and returns its ID at Modal. If
// the caller gives up, the image is deleted.
func (s *Sandbox) capture(ctx context.Context, ttl time.Duration) (string, error) {
	type answer struct {
		id  string
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		img, err := call.Attempt(s.e.ctx, ctx, s.e.patience.Snapshot, "take a snapshot",
			func(ctx context.Context) (*sdk.Image, error) {
				return s.box.SnapshotFilesystem(ctx,
					&sdk.SandboxSnapshotFilesystemParams{Timeout: call.Usual.Snapshot, TTL: ttl})
			})
		if err != nil {
			answered <- answer{err: err}
			return
		}
		answered <- answer{id: img.ImageID}
	}()
	select {
	case a := <-answered:
		if a.err != nil && ctx.Err() == nil && s.hasEnded(ctx) {
			return "", s.over()
		}
		return a.id, a.err
	case <-ctx.Done():
	}
	go func() {
		if a := <-answered; a.err == nil {
			if err := s.e.forget(s.e.ctx, a.id); err != nil {
				logf.Warnf(s.e.ctx, "an abandoned image at Modal: %v", err)
			}
		}
	}()
	return "", errors.Wrapf(ctx.Err(), "take a snapshot")
}

// forget deletes an image at Modal.
func (e *Engine) forget(ctx context.Context, id string) error {
	_, err := ask(ctx, e, "delete an image", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, e.client.Images.Delete(ctx, id, nil)
	})
	switch errors.KindOf(err) {
	case errors.NotFound:
		return nil
	case errors.Conflict:
		return errors.Remedy(errors.Explainf(err, errors.Conflict, "Modal does not delete the image: %.300s",
			call.Plain(err)), "end its users first")
	}
	return err
}

// Spec implements engine.Described.
func (s *Sandbox) Spec(ctx context.Context) (engine.Spec, error) {
	reply, err := s.Call(ctx, wire.Request{Op: wire.Info})
	if err == nil && (reply.Claim == nil || reply.Claim.Spec == nil) {
		err = wire.Undescribed(s.h.ID)
	}
	if err != nil {
		return engine.Spec{}, err
	}
	spec := *reply.Claim.Spec
	spec.Env = reply.Claim.Env
	return spec, nil
}

// Ends implements engine.Carrier.
func (s *Sandbox) Ends() (due, end time.Time) {
	if s.end.IsZero() {
		return time.Time{}, time.Time{}
	}
	return s.end.Add(-s.e.opts.CarryAhead), s.end
}

// Carry implements engine.Carrier with a snapshot, which Modal keeps for as long as the new sandbox may need
// it.
func (s *Sandbox) Carry(ctx context.Context) (engine.Sandbox, error) {
	spec, err := s.Spec(ctx)
	if err != nil {
		return nil, errors.Stage(err, "carry over")
	}
	if slices.ContainsFunc(spec.Mounts, func(m engine.Mount) bool { return m.Volume != "" }) {
		switch err := s.e.reload(ctx, s.box); {
		// A process that is not a command of Harvest's has files of the volume open. Ending the sandbox commits
		// the volume, too.
		case errors.KindOf(err) == errors.Conflict:
			logf.Warnf(ctx, "the volumes of sandbox %s, which is carried over, are committed when it ends: %v", s.h.ID,
				err)
		case err != nil:
			return nil, errors.Stage(err, "carry over")
		}
	}
	id, err := s.capture(ctx, 2*max(s.e.opts.Life, time.Hour).Round(time.Second))
	if err != nil {
		return nil, errors.Stage(err, "carry over")
	}
	// A Config with an environment keeps launch from learning it anew.
	img := records.Image{Modal: id, Image: image.Image{Config: image.Config{Env: map[string]string{}}}}
	next, err := s.e.launch(ctx, spec, img, s.e.nameOf(spec.ID+"."+strconv.FormatInt(time.Now().UnixMilli(), 36)))
	if err != nil {
		return nil, errors.Stage(errors.Join(err, s.e.forget(context.WithoutCancel(ctx), id)), "carry over")
	}
	return next, nil
}
