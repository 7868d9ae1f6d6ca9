package app

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/programs"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/helpers"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/build"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
)

// bucketFinder returns the location of an account's bucket, for an engine that mounts buckets itself.
type bucketFinder func(ctx context.Context, owner string, b places.Place) (modalengine.Place, error)

// openEngine opens the configured engine, and the parts below it, nil for an engine without them. They are closed after
// the engine.
func openEngine(ctx context.Context, cfg config.Config, find bucketFinder,
	owner func(context.Context, string, int) (bool, error)) (engine.Engine, *parts, error) {
	if cfg.Engine == "fake" {
		logf.Warnf(ctx, "the engine fake isolates nothing; use it only in tests")
		eng, err := fake.Open(filepath.Join(cfg.Data, "fake"), fake.Options{KeepOutput: cfg.OutputBytes,
			VolumeQuota: cfg.Quotas.Volumes, VolumeFiles: spec.VolumeFiles(engine.Limits(cfg.Limits))})
		return eng, nil, err
	}
	if cfg.Engine == "modal" {
		eng, err := openModalEngine(ctx, cfg, find)
		return eng, nil, err
	}
	p, err := openParts(cfg)
	if err != nil {
		return nil, nil, err
	}
	var eng engine.Engine
	if cfg.Engine == kubernetes.Name {
		eng, err = kubernetes.Open(ctx, kubernetesOptions(cfg, p))
	} else {
		eng, err = openGVisor(ctx, cfg, p, owner)
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.volumes.Close())
	}
	return eng, p, nil
}

// openParts opens what an engine of this server's images and volumes needs.
func openParts(cfg config.Config) (*parts, error) {
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
	return &parts{volumes: volumes, images: images, builds: builds}, nil
}

// openGVisor opens the engine that runs sandboxes on this machine.
func openGVisor(ctx context.Context, cfg config.Config, p *parts,
	owner func(context.Context, string, int) (bool, error)) (engine.Engine, error) {
	programs, err := gvisorPrograms(cfg.Data)
	if err != nil {
		return nil, err
	}
	eng, err := gvisor.Open(ctx, gvisor.Options{
		Dir: cfg.Data, Executable: programs.Keeper, Sentry: programs.Sentry, Tools: programs.Tools, Images: p.images,
		Volumes: p.volumes, Platform: cfg.Platform,
		NoSetuid: !cfg.Setuid, OutputBytes: cfg.OutputBytes, SetOwner: owner,
	})
	if err != nil {
		return nil, err
	}
	return eng, nil
}

func kubernetesOptions(cfg config.Config, p *parts) kubernetes.Options {
	k := cfg.Kubernetes
	o := kubernetes.Options{Dir: filepath.Join(cfg.Data, "kubernetes"), Images: p.images, Volumes: p.volumes,
		S3: func(ctx context.Context) (*embedded.Server, error) {
			return startS3(ctx, cfg.Data, filepath.Join(cfg.Data, "kubernetes", "s3"))
		},
		Kubeconfig: k.Kubeconfig, Context: k.Context, Namespace: k.Namespace, Reach: kubernetes.Reach(k.Reach),
		Pod: kubernetes.Pod{Image: k.Image, PullPolicy: k.PullPolicy, PullSecrets: k.PullSecrets,
			ServiceAccount: k.ServiceAccount, RuntimeClass: k.RuntimeClass, PriorityClass: k.PriorityClass,
			NodeSelector: map[string]string{}, Tolerations: k.Tolerations, UserNamespace: k.UserNamespace,
			CPU: k.CPU, Memory: k.Memory, Cache: k.Cache, Grace: k.Grace,
			NoSetuid: !cfg.Setuid, OutputBytes: cfg.OutputBytes}}
	for _, pair := range k.NodeSelector {
		label, value, _ := strings.Cut(pair, "=")
		o.Pod.NodeSelector[label] = value
	}
	for _, text := range k.NodeAddresses {
		if addr, err := netip.ParseAddr(text); err == nil { // config has checked it
			o.Pod.Hosts = append(o.Pod.Hosts, addr.Unmap())
		}
	}
	return o
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

// parts are what the engines of this server's images and volumes were opened with.
type parts struct {
	volumes *volume.Local
	images  dockerfile.Shelf
	builds  *dockerfile.Source
}

// close returns a function that closes an engine, and then its parts. p may be nil.
func (p *parts) close(eng engine.Engine) func(context.Context) error {
	return func(context.Context) error {
		err := eng.Close()
		if p != nil {
			err = errors.Join(err, p.volumes.Close())
		}
		return err
	}
}

// connect makes images build in sandboxes of the fleet, whose engine keeps its volumes in store, until the returned
// function is called. p may be nil.
func (p *parts) connect(fleet *fleet.Fleet, store volume.Provider) func(context.Context) error {
	if p == nil {
		return func(context.Context) error { return nil }
	}
	p.builds.Connect(p.images, build.New(fleet, store))
	return p.builds.Close
}
