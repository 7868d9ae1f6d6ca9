// Package container makes sandboxes of the dev containers that repositories describe: it builds their images, and runs
// their lifecycle commands. Package devcontainer knows what the descriptions mean.
package container

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/docker/go-units"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// label is the label of images that Build has made, and of those made from them. It has a place as JSON.
const label = "harvest.devcontainer"

const (
	// probeTime limits the startup files of a user's shell.
	probeTime = time.Minute
	// commandTime limits a lifecycle command, and life an entrypoint.
	commandTime = 2 * time.Hour
	life        = 7 * 24 * time.Hour
	// mostPorts limits the ports of a description.
	mostPorts = 32
	// mostLabel limits the label of a port, in characters.
	mostLabel = 100
	// defaultPath is PATH in sandboxes of images that have none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// lastOutput is how much output of a failed command is in its error, in bytes.
	lastOutput = 2 << 10
)

// place says where the parts of a dev container are.
type place struct {
	Config string `json:"config"` // path of the devcontainer.json in the repository
	Repo   string `json:"repo"`   // identifies the repository
	Dir    string `json:"dir"`    // of the repository in sandboxes
	Folder string `json:"folder"` // the same directory, as the devcontainer.json has it
	// Secrets are recommended variables. The metadata of an image does not have them.
	Secrets map[string]devcontainer.Secret `json:"secrets,omitempty"`
}

// Environment is a dev container as a sandbox.
type Environment struct {
	place
	merged *devcontainer.Merged
	env    map[string]string // of the image
}

// Of returns the environment of an image, or nil if the image is not that of a dev container. local is what
// ${localEnv:…} stands for, and id identifies what the environment is for.
func Of(img image.Image, local map[string]string, id string) (*Environment, error) {
	text := img.Config.Labels[label]
	if text == "" {
		return nil, nil
	}
	e := &Environment{env: maps.Clone(img.Config.Env)}
	if e.env["PATH"] == "" {
		if e.env == nil {
			e.env = map[string]string{}
		}
		e.env["PATH"] = defaultPath
	}
	if err := json.Unmarshal([]byte(text), &e.place); err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "the image %s has a damaged label %s", img.ID, label)
	}
	metadata, err := devcontainer.ParseMetadata(img.Config.Labels[devcontainer.Label])
	if err != nil {
		return nil, err
	}
	values, err := e.variables(local, id)
	if values.ContainerEnv = e.env; err == nil {
		metadata, err = metadata.Substitute(values)
	}
	if err != nil {
		return nil, err
	}
	e.merged = devcontainer.Merge(metadata)
	return e, nil
}

func (p place) variables(local map[string]string, id string) (devcontainer.Variables, error) {
	name, err := devcontainer.ID(map[string]string{"harvest": id})
	if local == nil {
		local = map[string]string{} // variables are then empty, and not left
	}
	return devcontainer.Variables{LocalEnv: local, LocalFolder: p.Dir, ContainerFolder: p.Folder, ID: name}, err
}

// Adapt adds to the request of a sandbox what the environment has: variables, ports, volumes if the engine has them,
// and the hardware that it needs at least, if rules allow that. The request's own variables and mounts take precedence.
// Adapt returns a sentence for each requirement that the sandbox does not meet.
//
// A volume belongs to the repository: its name begins with a digest of that. Otherwise a description, a feature or an
// image could mount any volume of the account.
func (e *Environment) Adapt(req *spec.Request, rules spec.Rules) (short []string) {
	can := rules.Can
	if own, ok := rules.Isolations[cmp.Or(req.Isolation, rules.Isolation)]; ok {
		can = own
	}
	own := req.Env
	req.Env = e.merged.RemoteEnv.Apply(e.merged.ContainerEnv.Apply(map[string]string{}))
	maps.Copy(req.Env, own)
	addPorts(req, e.merged)
	for _, m := range e.merged.Mounts {
		target := path.Clean(m.Target)
		taken := !path.IsAbs(target) || slices.ContainsFunc(req.Volumes, func(v spec.Mount) bool {
			return within(v.Path, target) || within(target, v.Path)
		})
		if can.Volumes && m.Type == "volume" && m.Source != "" && !taken {
			req.Volumes = append(slices.Clone(req.Volumes), spec.Mount{Name: e.volume(m.Source), Path: target,
				ReadOnly: m.ReadOnly()})
		}
	}
	needs := e.merged.HostRequirements
	if needs == nil {
		return nil
	}
	size := func(n int64) string { return units.BytesSize(float64(n)) }
	for _, text := range []string{
		require(&req.CPU, need[float64]{"cpus", float64(needs.CPUs), rules.Defaults.CPU, rules.Machine.CPU,
			slices.Contains(can.Limits, "cpu"), func(n float64) string { return fmt.Sprintf("%g cores", n) }}),
		require(&req.Memory, need[int64]{"memory", devcontainer.Bytes(needs.Memory), rules.Defaults.Memory,
			rules.Machine.Memory, slices.Contains(can.Limits, "memory"), size}),
		require(&req.Disk, need[int64]{"storage", devcontainer.Bytes(needs.Storage), rules.Defaults.Disk, math.MaxInt64,
			slices.Contains(can.Limits, "disk"), size}),
	} {
		if text != "" {
			short = append(short, e.Config+" "+text)
		}
	}
	return short
}

// need is a requirement of hardware.
type need[T int64 | float64] struct {
	name               string // in hostRequirements
	least, usual, most T      // that it asks for, that a sandbox has by default, and that one can have
	limited            bool   // the engine can limit it
	text               func(T) string
}

// require raises the limit of a request to what is required. If a sandbox cannot have so much, it gets the most, and
// require returns the end of a sentence about that: the requirement may be that of the authors' machines.
func require[T int64 | float64](limit *T, n need[T]) string {
	if !n.limited || n.least <= cmp.Or(*limit, n.usual) {
		return ""
	}
	if n.least <= n.most {
		*limit = n.least
		return ""
	}
	if n.most > cmp.Or(*limit, n.usual) {
		*limit = n.most
	}
	return fmt.Sprintf("asks for %s (hostRequirements.%s), and a sandbox can have at most %s here: it has %s",
		n.text(n.least), n.name, n.text(n.most), n.text(cmp.Or(*limit, n.usual)))
}

// addPorts adds the ports of a description, without those that it hides, and describes all ports of the request.
func addPorts(req *spec.Request, merged *devcontainer.Merged) {
	for _, port := range merged.ForwardPorts {
		host, number, err := port.Split()
		if err == nil && host == "localhost" && !slices.Contains(req.Ports, number) && len(req.Ports) < mostPorts &&
			merged.AttributesOf(number).OnAutoForward != "ignore" {
			req.Ports = append(slices.Clone(req.Ports), number)
		}
	}
	for _, port := range req.Ports {
		about := merged.AttributesOf(port)
		label := []rune(strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return -1
			}
			return r
		}, about.Label))
		d := spec.PortDetail{Port: port, Label: string(label[:min(len(label), mostLabel)]), Protocol: about.Protocol}
		if d.Label != "" || d.Protocol != "" {
			req.PortDetails = append(slices.Clone(req.PortDetails), d)
		}
	}
}

// within reports whether a path is in a directory, or the directory itself.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// volume returns the name of a volume of the repository.
func (e *Environment) volume(source string) string {
	sum := sha256.Sum256([]byte(e.Repo))
	name := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-", r)) {
			return r
		}
		return '-'
	}, source)
	return "dev-" + hex.EncodeToString(sum[:4]) + "-" + name[:min(len(name), 100)]
}

// Start makes the directories of mounts of the type tmpfs, and runs the entrypoints of the environment, as root. It
// does not wait for them: they may be servers.
func (e *Environment) Start(ctx context.Context, box shell.Sandbox) error {
	var lines []string
	for _, m := range e.merged.Mounts {
		if m.Type == "tmpfs" {
			target := devcontainer.ShellQuote(m.Target)
			lines = append(lines, "mkdir -p "+target+" && chmod 1777 "+target)
		}
	}
	if lines = append(lines, e.merged.Entrypoints...); len(lines) == 0 {
		return nil
	}
	req := fleet.ExecRequest{Args: []string{"/bin/sh", "-c", strings.Join(lines, "\n")}, Workdir: "/",
		Timeout: life, Detach: true, Background: true}
	if box.Fleet.Capabilities().Users {
		req.User = "0:0"
	}
	_, err := box.Fleet.Exec(ctx, box.Account, box.ID, req)
	return errors.Stage(err, "entrypoint")
}

// Has reports whether there are commands of one of these hooks.
func (e *Environment) Has(hooks ...string) bool {
	return slices.ContainsFunc(hooks, func(hook string) bool { return len(e.merged.Hooks(hook)) > 0 })
}

// Waits divides hooks into those for which a session waits, and the later ones. The specification has
// updateContentCommand as the default of waitFor. Here it is the last command: an agent would begin to work, and find
// that the tools which a command installs are missing.
func (e *Environment) Waits(hooks []string) (now, later []string) {
	if e.merged.WaitFor == "" {
		return hooks, nil
	}
	last := slices.Index(devcontainer.Hooks, e.merged.WaitFor) // -1 for initializeCommand
	i := slices.IndexFunc(hooks, func(hook string) bool { return slices.Index(devcontainer.Hooks, hook) > last })
	if i < 0 {
		return hooks, nil
	}
	return hooks[:i], hooks[i:]
}

// Run runs the commands of hooks in a sandbox, in their order, as the environment's user in the repository. Output goes
// to out, which may be called concurrently. After a failure no more commands run; the error has the hook, and the last
// output of the command.
func (e *Environment) Run(ctx context.Context, box shell.Sandbox, out io.Writer, hooks ...string) error {
	if !e.Has(hooks...) {
		return nil
	}
	env, err := e.probe(ctx, box, out)
	if err != nil {
		return err
	}
	for _, name := range hooks {
		for _, hook := range e.merged.Hooks(name) {
			from := name
			if hook.Origin != "devcontainer.json" {
				from += " of " + hook.Origin
			}
			if err := e.run(ctx, box, from, hook.Command, env, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// run runs a command; those of an object at the same time.
func (e *Environment) run(ctx context.Context, box shell.Sandbox, name string, c devcontainer.Command,
	env map[string]string, out io.Writer) error {
	if len(c.Parallel) == 0 {
		return e.runOne(ctx, box, name, c, env, out)
	}
	// All run to their ends: a failure of one must not kill the others.
	var all errgroup.Group
	for _, key := range slices.Sorted(maps.Keys(c.Parallel)) {
		all.Go(func() error { return e.runOne(ctx, box, name+" "+key, c.Parallel[key], env, out) })
	}
	return all.Wait()
}

func (e *Environment) runOne(ctx context.Context, box shell.Sandbox, name string, c devcontainer.Command,
	env map[string]string, out io.Writer) error {
	if c.IsZero() {
		return nil
	}
	last := &tail{to: out}
	x, err := box.Fleet.Exec(ctx, box.Account, box.ID, fleet.ExecRequest{Args: c.Argv(), Workdir: e.Dir, Env: env,
		Merged: true, Stdout: last, Timeout: commandTime})
	if err != nil {
		return errors.Wrapf(err, "%s", name)
	}
	result, err := x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the command is killed
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return errors.Wrapf(err, "%s", name)
	}
	if result.ReturnCode != 0 {
		err := errors.Newf(errors.Invalid, "%s of %s failed with exit code %d: %s", name, e.Config, result.ReturnCode,
			shell.LastLines(string(last.text), result.Why()))
		return errors.Remedy(err, "correct the command in %s; \"devcontainer\": \"\" in harvest.json ignores the file",
			e.Config)
	}
	return nil
}

// tail passes output on, and keeps the end of it.
type tail struct {
	to   io.Writer
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-lastOutput):]
	return t.to.Write(p)
}

// probe returns the environment of commands: that of the user's shell, with remoteEnv.
func (e *Environment) probe(ctx context.Context, box shell.Sandbox, out io.Writer) (map[string]string, error) {
	found, err := box.Output(ctx, `id -u; getent passwd "$(id -u)" | cut -d: -f7`)
	if err != nil {
		return nil, errors.Stage(err, "environment")
	}
	id, program, _ := strings.Cut(strings.TrimSpace(found), "\n")
	mark := "harvest-" + rand.Text()
	env := e.env
	if args := devcontainer.Probe(e.merged.UserEnvProbe, program, mark); args != nil {
		x, err := box.Fleet.Exec(ctx, box.Account, box.ID, fleet.ExecRequest{Args: args, Workdir: e.Dir,
			Timeout: probeTime, Stderr: io.Discard})
		if err != nil {
			return nil, errors.Stage(err, "environment")
		}
		result, err := x.Wait(ctx)
		if err != nil {
			return nil, errors.Stage(err, "environment")
		}
		if result.TimedOut {
			_, _ = fmt.Fprintf(out, "the startup files of %s took more than %s: commands run without them\n", program,
				probeTime)
		}
		env = devcontainer.ReadProbe([]byte(result.Stdout), mark, e.env, id == "0")
	}
	return e.merged.RemoteEnv.Apply(env), nil
}
