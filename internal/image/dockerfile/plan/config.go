package plan

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"github.com/containerd/platforms"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// resolver finds images for the converter, which calls it concurrently. It resolves one image at a time.
type resolver struct {
	doc     *document
	resolve Resolve

	mu sync.Mutex
	// found has images by platform, and normalised name without or with the image's digest.
	found  map[[2]string]image.Image // guarded by mu
	failed int                       // guarded by mu; line of an image that was not found
}

// ResolveImageConfig implements llb.ImageMetaResolver. ref is normalised: "docker.io/library/debian:latest".
func (r *resolver) ResolveImageConfig(ctx context.Context, ref string, opt sourceresolver.Opt) (string, digest.Digest,
	[]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	platform := platforms.DefaultSpec()
	if opt.ImageOpt != nil && opt.ImageOpt.Platform != nil {
		platform = *opt.ImageOpt.Platform
	}
	name, line := r.doc.written(ref)
	on := foreign(&platform)
	img, known := r.found[[2]string{on, ref}]
	if !known {
		var err error
		if img, err = r.resolve(ctx, name, on); err != nil {
			r.failed = line
			return "", "", nil, err
		}
		if err := checkTriggers(img.Config.OnBuild); err != nil {
			return "", "", nil, err
		}
		bare, _, _ := strings.Cut(ref, "@")
		r.found[[2]string{on, ref}] = img
		r.found[[2]string{on, bare + "@" + img.Digest}] = img // the name that the converter gives it
	}
	own := img.Config
	own.Env = own.OwnEnv()
	file := own.Docker()
	file.Platform = platform
	// The converter takes an image without layers for the empty one.
	file.RootFS = ocispecs.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.Digest(img.Digest)}}
	config, err := json.Marshal(file)
	return ref, digest.Digest(img.Digest), config, errors.Wrapf(err, "encode the configuration of an image")
}

// maxTriggers is the maximum number of ONBUILD instructions of an image.
const maxTriggers = 100

// checkTriggers refuses the ONBUILD instructions of an image that are none.
func checkTriggers(texts []string) error {
	if len(texts) > maxTriggers {
		return errors.Newf(errors.Invalid, "the base has %d ONBUILD instructions, more than %d", len(texts),
			maxTriggers)
	}
	for _, text := range texts {
		result, err := parser.Parse(strings.NewReader(text))
		if err == nil && len(result.AST.Children) != 1 {
			err = errors.Errorf("want one instruction")
		}
		// The converter's parser panics at a comment that configures the linter.
		if err == nil && len(result.AST.Children[0].PrevComment) > 0 {
			err = errors.Errorf("want no comment")
		}
		if err == nil {
			_, err = instructions.ParseCommand(result.AST.Children[0])
		}
		if err != nil {
			return errors.Newf(errors.Invalid, "the base has an invalid instruction ONBUILD %.200q: %s", text,
				files.Clip(err.Error()))
		}
	}
	return nil
}

var userPattern = pattern.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)

// configOf returns the configuration that the converter made.
func configOf(file *dockerspec.DockerOCIImage) (image.Config, error) {
	c := image.ConfigOf(file)
	for _, kv := range file.Config.Env {
		if strings.HasPrefix(kv, "=") || strings.ContainsRune(kv, 0) {
			return c, errors.Newf(errors.Invalid, "invalid variable %.100q", kv)
		}
	}
	if c.User != "" && !userPattern().MatchString(c.User) {
		return c, errors.Remedy(errors.Newf(errors.Invalid, "invalid user %.100q", c.User),
			"give a name or a number, either followed by ':' and a group")
	}
	return c, nil
}
