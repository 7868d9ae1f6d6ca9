// Package plan converts Dockerfiles to graphs of operations.
//
// BuildKit's own converter, dockerfile2llb, decides the meaning of a Dockerfile: variables, stages, triggers, mounts,
// platforms and the image's configuration. Its result is LLB, the graph that BuildKit executes. This package resolves
// the images of the graph in Harvest's library, refuses the operations that Harvest does not execute, and orders the
// rest.
package plan

import (
	"context"
	"maps"
	"runtime"
	"time"

	"github.com/containerd/platforms"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/solver/pb"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Resolve returns the image of a FROM or of a --from. It pulls the image if necessary. platform is "" for this
// machine's. It is called for one image at a time.
type Resolve func(ctx context.Context, ref, platform string) (image.Image, error)

// Plan is the graph of a build.
type Plan struct {
	Target *Vertex   // nil if the image has no files
	Order  []*Vertex // all vertices, each after its inputs
	Config image.Config
	Epoch  time.Time // SOURCE_DATE_EPOCH; zero if not set

	doc *document
}

// New plans the build of a spec.
func New(ctx context.Context, spec image.Spec, resolve Resolve) (*Plan, error) {
	doc, err := read(spec)
	if err != nil {
		return nil, err
	}
	p := &Plan{doc: doc, Epoch: doc.epoch}
	target, err := doc.aim(spec.Target)
	if err != nil {
		return nil, err
	}
	main, caps := llb.Local(ContextName), pb.Caps.CapSet(pb.Caps.All())
	images := &resolver{doc: doc, resolve: resolve, found: map[[2]string]image.Image{}}
	opt := dockerfile2llb.ConvertOpt{
		// The converter changes the arguments.
		Config: dockerui.Config{BuildArgs: maps.Clone(spec.Args), Target: target,
			BuildPlatforms: []ocispecs.Platform{platforms.DefaultSpec()}},
		SourceMap:    llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", []byte(doc.text)),
		MainContext:  &main,
		LLBCaps:      &caps,
		MetaResolver: images,
	}
	if spec.Platform != "" {
		target, err := platforms.Parse(spec.Platform)
		if err != nil {
			return nil, errors.Explainf(err, errors.Invalid, "invalid platform %.100q", spec.Platform)
		}
		opt.TargetPlatform = &target
	}
	converted, err := dockerfile2llb.Dockerfile2LLB(ctx, []byte(doc.text), opt)
	if err != nil {
		return nil, doc.explain(err, images.failed)
	}
	if p.Config, err = configOf(converted.Image); err != nil {
		return nil, err
	}
	def, err := converted.State.Marshal(ctx)
	if err != nil {
		return nil, doc.explain(err, 0)
	}
	return p, p.graph(def, images)
}

// ContextName is the name of the build context as a source.
const ContextName = "context"

// At adds the line of a vertex to an error.
func (p *Plan) At(v *Vertex, err error) error { return p.doc.at(v.Line, err) }

// foreign returns the name of a platform, or "" if programs for it run on this machine.
func foreign(platform *ocispecs.Platform) string {
	if platform == nil || platform.OS == "" {
		return ""
	}
	p := platforms.Normalize(*platform)
	if p.OS == "linux" && p.Architecture == runtime.GOARCH { // of any variant, such as linux/amd64/v2
		return ""
	}
	return platforms.Format(p)
}
