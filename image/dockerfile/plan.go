package dockerfile

import (
	"context"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// scratch is the name of the empty image.
const scratch = "scratch"

// sourceDateEpoch is the build argument that makes layers reproducible:
// https://reproducible-builds.org/specs/source-date-epoch/.
const sourceDateEpoch = "SOURCE_DATE_EPOCH"

// maxEpoch is in the year 9999, the last one that tar headers and RFC 3339 can represent.
const maxEpoch = 253402300799

// maxTriggers is the maximum number of ONBUILD instructions of a base.
const maxTriggers = 100

// plan lists the stages that the target needs, each after the stages that it needs itself.
type plan struct {
	doc    *document
	args   map[string]string // build arguments
	epoch  time.Time         // SOURCE_DATE_EPOCH; zero if not set
	global []string          // KEY=VALUE: platforms and ARGs before the first FROM
	target *stage
	order  []*stage

	all      []*stage
	external map[string]*stage // images in COPY --from and the like
	resolve  func(ctx context.Context, ref, platform string) (image.Image, error)
}

// stage is a FROM with its instructions.
type stage struct {
	name     string
	line     int
	base     *stage       // nil: img
	img      *image.Image // nil: scratch
	platform string
	commands []command
	needs    []*stage // base and sources of copies
	sources  map[string]*stage

	steps  []step
	config image.Config

	visiting, visited bool
}

// command is an instruction with its line.
type command struct {
	instructions.Command
	line int
}

// newPlan plans the build of a spec. resolve returns images, and pulls them if necessary.
func newPlan(ctx context.Context, spec image.Spec,
	resolve func(ctx context.Context, ref, platform string) (image.Image, error)) (*plan, error) {
	doc, err := read(spec)
	if err != nil {
		return nil, err
	}
	p := &plan{doc: doc, args: spec.Args, external: map[string]*stage{}, resolve: resolve}
	for i := range doc.stages {
		s := &doc.stages[i]
		p.all = append(p.all, &stage{name: s.Name, line: lineOf(s.Location), sources: map[string]*stage{}})
	}
	if p.target, err = p.find(spec.Target); err != nil {
		return nil, err
	}
	if p.epoch, err = parseEpoch(spec.Args[sourceDateEpoch]); err != nil {
		return nil, err
	}
	if err := p.globals(spec); err != nil {
		return nil, err
	}
	if err := p.visit(ctx, p.target); err != nil {
		return nil, err
	}
	for _, s := range p.order {
		if err := p.expand(s); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// parseEpoch parses SOURCE_DATE_EPOCH. The time is zero if it is not set.
func parseEpoch(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 || seconds > maxEpoch {
		err := errors.Newf(errors.Invalid, "the build argument %s: invalid time %.100q", sourceDateEpoch, text)
		return time.Time{}, errors.Remedy(err, "give seconds since 1970, such as $(git log -1 --format=%%ct)")
	}
	return time.Unix(seconds, 0), nil
}

// find returns the stage to build.
func (p *plan) find(target string) (*stage, error) {
	if target == "" {
		return p.all[len(p.all)-1], nil
	}
	if s := p.named(target, len(p.all)); s != nil {
		return s, nil
	}
	var names []string
	for i, s := range p.all {
		if s.name == "" {
			names = append(names, strconv.Itoa(i))
		} else {
			names = append(names, s.name)
		}
	}
	return nil, errors.Remedy(errors.Newf(errors.Invalid, "there is no stage %.100q in %s", target, p.doc.what),
		"the stages are %s", strings.Join(names, ", "))
}

// named returns the stage of that name or number among the first before stages.
func (p *plan) named(name string, before int) *stage {
	for i := before - 1; i >= 0; i-- {
		if p.all[i].name != "" && strings.EqualFold(p.all[i].name, name) {
			return p.all[i]
		}
	}
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < before {
		return p.all[i]
	}
	return nil
}

// globals sets the variables that FROM may use.
func (p *plan) globals(spec image.Spec) error {
	target := spec.Platform
	if target == "" {
		target = "linux/" + runtime.GOARCH
	}
	parts := append(strings.Split(target, "/"), "", "")
	name := spec.Target
	if name == "" {
		name = p.target.name
	}
	if name == "" {
		name = "default"
	}
	for _, kv := range [][2]string{
		{"BUILDPLATFORM", "linux/" + runtime.GOARCH}, {"BUILDOS", "linux"}, {"BUILDARCH", runtime.GOARCH},
		{"BUILDVARIANT", ""},
		{"TARGETPLATFORM", target}, {"TARGETOS", parts[0]}, {"TARGETARCH", parts[1]}, {"TARGETVARIANT", parts[2]},
		{"TARGETSTAGE", name},
	} {
		value, ok := p.args[kv[0]]
		if !ok {
			value = kv[1]
		}
		p.global = set(p.global, kv[0], value)
	}
	for _, c := range p.doc.globals {
		for _, arg := range c.Args {
			value, ok := p.args[arg.Key]
			if !ok && arg.Value != nil {
				expanded, _, err := p.doc.lex.ProcessWord(*arg.Value, shell.EnvsFromSlice(p.global))
				if err != nil {
					return p.doc.errorf(lineOf(c.Location()), "%s", clip(err.Error()))
				}
				value, ok = expanded, true
			}
			if ok {
				p.global = set(p.global, arg.Key, value)
			}
		}
	}
	return nil
}

// set sets a variable in a list of KEY=VALUE.
func set(env []string, name, value string) []string {
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	if i < 0 {
		return append(env, name+"="+value)
	}
	env = slices.Clone(env)
	env[i] = name + "=" + value
	return env
}

func get(env []string, name string) (string, bool) {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// visit resolves the dependencies of a stage, recursively.
func (p *plan) visit(ctx context.Context, s *stage) error {
	if s.visited {
		return nil
	}
	if s.visiting {
		return errors.Remedy(p.doc.errorf(s.line, "the stage needs itself, through others that it copies from"),
			"copy from stages that do not need this one")
	}
	s.visiting = true
	i := slices.Index(p.all, s)
	from := p.doc.stages[i]
	if err := p.visitBase(ctx, s, from, i); err != nil {
		return err
	}
	for _, c := range from.Commands {
		s.commands = append(s.commands, command{c, lineOf(c.Location())})
	}
	for _, c := range s.commands {
		if err := p.visitSources(ctx, s, c); err != nil {
			return err
		}
	}
	s.visited = true
	p.order = append(p.order, s)
	return nil
}

func (p *plan) visitBase(ctx context.Context, s *stage, from instructions.Stage, i int) error {
	name, err := p.word(from.BaseName, s.line)
	if err != nil {
		return err
	}
	if name == "" {
		return errors.Remedy(p.doc.errorf(s.line, "the name %.100q of the image is empty", from.BaseName),
			"give the ARG a default before the first FROM, or a value with --build-arg")
	}
	if s.platform, err = p.word(from.Platform, s.line); err != nil {
		return err
	}
	switch base := p.named(name, i); {
	case base != nil:
		if err := p.visit(ctx, base); err != nil {
			return err
		}
		s.base, s.needs = base, append(s.needs, base)
		return nil
	case name == scratch:
		return nil
	case strings.EqualFold(name, s.name):
		return errors.Remedy(p.doc.errorf(s.line, "the stage %q is made from itself", s.name),
			"name another stage or an image")
	case slices.ContainsFunc(p.all[i:], func(o *stage) bool { return strings.EqualFold(o.name, name) }):
		return errors.Remedy(p.doc.errorf(s.line, "the stage %q comes later: stages are made from earlier ones only",
			name), "change the order of the stages")
	}
	img, err := p.resolve(ctx, name, p.foreign(s.platform))
	if err != nil {
		return p.doc.at(s.line, err)
	}
	s.img = &img
	return p.triggers(s, img.Config.OnBuild)
}

// word expands the variables in an argument of FROM.
func (p *plan) word(word string, line int) (string, error) {
	result, _, err := p.doc.lex.ProcessWord(word, shell.EnvsFromSlice(p.global))
	if err != nil {
		return "", p.doc.errorf(line, "%s", clip(err.Error()))
	}
	return result, nil
}

// foreign returns the platform, or "" if it is this machine's.
func (p *plan) foreign(platform string) string {
	if platform == "" {
		platform, _ = get(p.global, "TARGETPLATFORM")
	}
	if platform == "linux/"+runtime.GOARCH {
		return ""
	}
	return platform
}

// triggers adds the ONBUILD instructions of the base, which run first.
func (p *plan) triggers(s *stage, texts []string) error {
	if len(texts) > maxTriggers {
		return p.doc.errorf(s.line, "the base has %d ONBUILD instructions, more than %d", len(texts), maxTriggers)
	}
	for _, text := range texts {
		result, err := parser.Parse(strings.NewReader(text))
		var cmd instructions.Command
		if err == nil && len(result.AST.Children) == 1 {
			cmd, err = instructions.ParseCommand(result.AST.Children[0])
		} else if err == nil {
			err = errors.Errorf("there is not one instruction")
		}
		switch cmd.(type) {
		case *instructions.OnbuildCommand, *instructions.MaintainerCommand:
			err = errors.Errorf("ONBUILD cannot hold %s", strings.ToUpper(cmd.Name()))
		}
		if err != nil {
			return p.doc.errorf(s.line, "the base's instruction ONBUILD %.200q cannot be carried out: %s", text,
				clip(err.Error()))
		}
		s.commands = append(s.commands, command{cmd, s.line})
	}
	return nil
}

// visitSources resolves the sources that an instruction copies from or mounts.
func (p *plan) visitSources(ctx context.Context, s *stage, c command) error {
	var names []string
	switch cmd := c.Command.(type) {
	case *instructions.CopyCommand:
		names = append(names, cmd.From)
	case *instructions.RunCommand:
		for _, m := range instructions.GetMounts(cmd) {
			names = append(names, m.From)
		}
	}
	for _, name := range names {
		if name == "" || name == "context" || s.sources[name] != nil {
			continue
		}
		if strings.ContainsRune(name, '$') {
			return errors.Remedy(p.doc.errorf(c.line, "from=%.100q: variables are not expanded there", name),
				"give the image a name of its own first: FROM … AS name")
		}
		src, err := p.source(ctx, s, name, c.line)
		if err != nil {
			return err
		}
		s.sources[name] = src
		if !slices.Contains(s.needs, src) {
			s.needs = append(s.needs, src)
		}
	}
	return nil
}

// source returns the stage of that name. An image is a stage without instructions.
func (p *plan) source(ctx context.Context, s *stage, name string, line int) (*stage, error) {
	if src := p.named(name, len(p.all)); src != nil {
		return src, p.visit(ctx, src)
	}
	if _, err := strconv.Atoi(name); err == nil {
		return nil, errors.Remedy(p.doc.errorf(line, "there is no stage %s", name),
			"stages are numbered from 0; better give them names")
	}
	if src := p.external[name]; src != nil {
		return src, nil
	}
	src := &stage{name: name, line: line, visited: true}
	if name != scratch {
		img, err := p.resolve(ctx, name, p.foreign(s.platform))
		if err != nil {
			return nil, p.doc.at(line, err)
		}
		src.img = &img
	}
	p.external[name] = src
	p.order = append(p.order, src)
	return src, nil
}

// images returns all images that the build uses.
func (p *plan) images() []image.Image {
	var all []image.Image
	for _, s := range p.order {
		if s.img != nil {
			all = append(all, *s.img)
		}
	}
	return all
}

var userPattern = pattern.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)

// below returns name as an absolute path; relative ones are below dir. It keeps a trailing slash.
func below(dir, name string) string {
	slash := strings.HasSuffix(name, "/") || name == "." || strings.HasSuffix(name, "/.")
	if !path.IsAbs(name) {
		name = path.Join("/", dir, name)
	}
	name = path.Clean(name)
	if slash && name != "/" {
		name += "/"
	}
	return name
}

// clip shortens messages of parsers to one line.
func clip(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
