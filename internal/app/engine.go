package app

import (
	"context"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/programs"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/helpers"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/build"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
)

// bucketFinder returns the location of an account's bucket, for an engine that mounts buckets itself.
type bucketFinder func(ctx context.Context, owner string, b places.Place) (modalengine.Place, error)

// openEngine opens the configured engine. Its Close also closes the parts below it.
func openEngine(ctx context.Context, cfg config.Config, find bucketFinder,
	owner func(context.Context, string, int) (bool, error)) (engine.Engine, error) {
	if cfg.Engine == "fake" {
		logf.Warnf(ctx, "the engine fake isolates nothing; use it only in tests")
		return fake.Open(filepath.Join(cfg.Data, "fake"), fake.Options{KeepOutput: cfg.OutputBytes,
			VolumeQuota: cfg.Quotas.Volumes, VolumeFiles: spec.VolumeFiles(engine.Limits(cfg.Limits))})
	}
	if cfg.Engine == "modal" {
		return openModalEngine(ctx, cfg, find)
	}
	images, builds, err := openImages(cfg)
	if err != nil {
		return nil, err
	}
	volumes, err := volume.OpenDir(filepath.Join(cfg.Data, "volumes"))
	if err != nil {
		return nil, err
	}
	volumes.SetQuota(cfg.Quotas.Volumes)
	volumes.SetFileLimit(spec.VolumeFiles(engine.Limits(cfg.Limits)))
	programs, err := gvisorPrograms(cfg.Data)
	if err != nil {
		return nil, errors.Join(err, volumes.Close())
	}
	eng, err := gvisor.Open(ctx, gvisor.Options{
		Dir: cfg.Data, Executable: programs.Keeper, Sentry: programs.Sentry, Tools: programs.Tools, Images: images,
		Volumes: volumes, Platform: cfg.Platform,
		NoSetuid: !cfg.Setuid, OutputBytes: cfg.OutputBytes, SetOwner: owner,
	})
	if err != nil {
		return nil, errors.Join(err, volumes.Close())
	}
	return &withVolumes{eng, volumes, images, builds}, nil
}

// gvisorPrograms unpacks the programs for sandboxes into the data directory. Without them, this program must contain
// gVisor.
func gvisorPrograms(data string) (programs.Programs, error) {
	programs, err := programs.Unpack(filepath.Join(data, "bin"))
	if err == nil && programs.Sentry == "" && !helpers.Linked {
		err = noPrograms(data)
	}
	return programs, err
}

// openModalEngine opens the engine that runs sandboxes at Modal.
func openModalEngine(ctx context.Context, cfg config.Config, find bucketFinder) (engine.Engine, error) {
	programs, err := programs.Unpack(filepath.Join(cfg.Data, "bin"))
	if err != nil {
		return nil, err
	}
	opts := modalOptions(cfg, programs.Tools)
	opts.Locate = find
	eng, err := modalengine.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return eng, nil
}

func modalOptions(cfg config.Config, executable string) modalengine.Options {
	return modalengine.Options{
		Dir: filepath.Join(cfg.Data, "modal-engine"), Executable: executable, TokenID: cfg.Modal.TokenID,
		TokenSecret: cfg.Modal.TokenSecret.Reveal(),
		Environment: cfg.Modal.Environment, App: cfg.Modal.App, Image: cfg.Modal.Image, OutputBytes: cfg.OutputBytes,
	}
}

// withVolumes is the gVisor engine with the parts that were opened for it.
type withVolumes struct {
	*gvisor.Engine
	volumes *volume.Local
	images  dockerfile.Shelf
	builds  *dockerfile.Source
}

// connect makes images build in sandboxes of the fleet until the returned function is called.
func (e *withVolumes) connect(fleet *fleet.Fleet) func(context.Context) error {
	e.builds.Connect(e.images, build.New(fleet, e.volumes))
	return e.builds.Close
}

func (e *withVolumes) Close() error { return errors.Join(e.Engine.Close(), e.volumes.Close()) }
