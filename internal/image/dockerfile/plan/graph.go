package plan

import (
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/solver/pb"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// Vertex is an operation of the graph. Its result is a tree of files.
type Vertex struct {
	Digest string // of the operation and, through its inputs, of everything before it
	Op     *pb.Op
	Inputs []*Vertex
	Line   int    // in the Dockerfile; 0 if unknown
	Title  string // for the log, such as "[build 2/5] RUN make"
	Image  *image.Image
}

// Root returns the vertex whose files the operation changes. It is nil for sources and operations on an empty tree.
func (v *Vertex) Root() *Vertex {
	at := int64(-1)
	switch op := v.Op.Op.(type) {
	case *pb.Op_Exec:
		for _, m := range op.Exec.Mounts {
			if m.Dest == "/" {
				at = m.Input
			}
		}
	case *pb.Op_File:
		at = op.File.Actions[0].Input
	case *pb.Op_Merge:
		at = op.Merge.Inputs[0].Input
	}
	if at < 0 {
		return nil
	}
	return v.Inputs[at]
}

// Copies yields the copies of a file operation that have an input of their own, with its index.
func (v *Vertex) Copies() iter.Seq2[int64, *pb.FileAction] {
	return func(yield func(int64, *pb.FileAction) bool) {
		for _, action := range v.Op.GetFile().GetActions() {
			i := action.SecondaryInput
			if action.GetCopy() != nil && i >= 0 && i < int64(len(v.Inputs)) && !yield(i, action) {
				return
			}
		}
	}
}

// IsInline reports whether the operation makes a tree of nothing but its arguments, such as a heredoc.
func (v *Vertex) IsInline() bool {
	op := v.Op.GetFile()
	return op != nil && len(v.Inputs) == 0 &&
		!slices.ContainsFunc(op.Actions, func(a *pb.FileAction) bool { return a.GetCopy() != nil })
}

// IsContext reports whether the operation is the build context.
func (v *Vertex) IsContext() bool {
	source := v.Op.GetSource()
	return source != nil && strings.HasPrefix(source.Identifier, "local://")
}

// Text returns the instruction without the prefix of the title.
func (v *Vertex) Text() string {
	if _, text, ok := strings.Cut(v.Title, "] "); ok && strings.HasPrefix(v.Title, "[") {
		return text
	}
	return v.Title
}

// Images returns all images that the build uses.
func (p *Plan) Images() []image.Image {
	var all []image.Image
	for _, v := range p.Order {
		if v.Image != nil {
			all = append(all, *v.Image)
		}
	}
	return all
}

// graph decodes the operations in their order.
func (p *Plan) graph(def *llb.Definition, images *resolver) error {
	known := map[string]*Vertex{}
	for i, text := range def.Def {
		op := &pb.Op{}
		if err := op.UnmarshalVT(text); err != nil {
			return errors.Wrapf(err, "decode an operation")
		}
		id := digest.FromBytes(text)
		v := &Vertex{Digest: id.String(), Op: op}
		for _, in := range op.Inputs {
			from := known[in.Digest]
			if from == nil || in.Index != 0 {
				return errors.Errorf("the input %s of an operation is unknown", in.Digest)
			}
			v.Inputs = append(v.Inputs, from)
		}
		if i == len(def.Def)-1 {
			p.Target = v.Inputs[0]
			return nil
		}
		v.Line = lineIn(def.Source, id)
		v.Title = files.Clip(def.Metadata[id].Description["llb.customname"])
		if err := p.admit(v, images); err != nil {
			return p.At(v, err)
		}
		known[v.Digest] = v
		p.Order = append(p.Order, v)
	}
	return nil
}

// lineIn returns the first line of an operation, or 0.
func lineIn(source *pb.Source, id digest.Digest) int {
	line := 0
	for _, l := range source.GetLocations()[id.String()].GetLocations() {
		for _, r := range l.Ranges {
			if n := int(r.Start.Line); line == 0 || n < line {
				line = n
			}
		}
	}
	return line
}

// admit completes a vertex, and refuses operations that Harvest does not execute.
func (p *Plan) admit(v *Vertex, images *resolver) error {
	switch op := v.Op.Op.(type) {
	case *pb.Op_Source:
		return admitSource(v, op.Source, images)
	case *pb.Op_Exec:
		return admitExec(v, op.Exec)
	case *pb.Op_File:
		if len(op.File.Actions) > 0 {
			return nil
		}
	case *pb.Op_Merge:
		if len(op.Merge.Inputs) > 0 {
			return nil
		}
	}
	return errors.Newf(errors.Unsupported, "the operation %T is not supported", v.Op.Op)
}

func admitSource(v *Vertex, source *pb.SourceOp, images *resolver) error {
	scheme, name, _ := strings.Cut(source.Identifier, "://")
	switch scheme {
	case "docker-image":
		platform := platformOf(v.Op)
		img, ok := images.found[[2]string{foreign(&platform), name}]
		if !ok {
			return errors.Errorf("the image %s of an operation is unknown", name)
		}
		v.Image = &img
		return nil
	case "local", "http", "https":
		return nil
	case "git":
		return errors.Remedy(errors.Newf(errors.Unsupported, "ADD of a git repository is not supported"),
			"use RUN git clone")
	}
	return errors.Newf(errors.Unsupported, "the source %.100q is not supported", source.Identifier)
}

func platformOf(op *pb.Op) ocispecs.Platform {
	if op.Platform == nil {
		return platforms.DefaultSpec()
	}
	return op.Platform.Spec()
}

func admitExec(v *Vertex, exec *pb.ExecOp) error {
	if exec.Network == pb.NetMode_HOST || exec.Security == pb.SecurityMode_INSECURE {
		return errors.Remedy(errors.Newf(errors.Denied,
			"RUN cannot have --network=host or --security=insecure: builds are as isolated as sandboxes"),
			"leave it out")
	}
	if len(exec.CdiDevices) > 0 {
		return errors.Remedy(errors.Newf(errors.Unsupported, "RUN cannot have --device"), "leave it out")
	}
	platform := platforms.Normalize(platformOf(v.Op))
	if local := platforms.DefaultSpec(); platform.OS != local.OS || platform.Architecture != local.Architecture {
		return errors.Remedy(errors.Newf(errors.Unsupported, "programs for %.50q cannot run on this machine",
			platforms.Format(platform)), "build for linux on this machine's processor, or leave RUN out of that stage")
	}
	if len(exec.Meta.Args) == 0 || exec.Meta.Args[0] == "" {
		return errors.Newf(errors.Invalid, "RUN has no command")
	}
	targets := map[string]bool{}
	for _, m := range exec.Mounts {
		if m.MountType == pb.MountType_SSH {
			if m.SSHOpt.GetOptional() {
				continue
			}
			return errors.Remedy(errors.Newf(errors.Unsupported,
				"--mount=type=ssh,required=true is not supported: private keys stay on their machine"),
				"use a token with --mount=type=secret, or leave required out")
		}
		if m.Dest == "/" || m.Dest == "" {
			continue
		}
		if m.Input < 0 && path.Join("/", m.Selector) != "/" && m.MountType != pb.MountType_TMPFS {
			return errors.Remedy(errors.Newf(errors.Invalid, "the mount at %s has the source %s, but no files", m.Dest,
				m.Selector), "name the stage or image of the source with from, or leave source out")
		}
		if slices.Contains([]string{"/proc", "/sys", "/dev"}, m.Dest) {
			return errors.Remedy(errors.Newf(errors.Invalid, "nothing can be mounted at %s", m.Dest),
				"mount it elsewhere")
		}
		if targets[m.Dest] {
			return errors.Newf(errors.Invalid, "two mounts have the target %s", m.Dest)
		}
		targets[m.Dest] = true
	}
	return nil
}
