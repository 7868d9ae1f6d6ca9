package devcontainer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// Label is the label of an image that has its metadata.
const Label = "devcontainer.metadata"

// Metadata are the entries of an image, in the order of their application. An image that a build makes has the entries
// of its base image, of the features, and of the devcontainer.json, with their variables, so that an environment can
// be created from the image alone.
type Metadata []Entry

// ParseMetadata decodes the label of an image; "" has no entries. The error is Invalid.
func ParseMetadata(label string) (Metadata, error) {
	if strings.TrimSpace(label) == "" {
		return nil, nil
	}
	doc, err := parse("the label "+Label+" of the image", []byte(label))
	if err != nil {
		return nil, err
	}
	if doc.root.Value.Kind() == '{' {
		doc.root = hujson.Value{Value: &hujson.Array{Elements: []hujson.Value{doc.root}}}
	}
	if err := doc.check(list(entryShape, "objects")); err != nil {
		return nil, err
	}
	var all Metadata
	for _, raw := range doc.root.Value.(*hujson.Array).Elements {
		e, err := decodeEntry(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// With returns the metadata of an image that is built from one with metadata m: with features, in the order of their
// installation, and the configuration.
func (m Metadata) With(features []*Feature, c *Config) (Metadata, error) {
	all := slices.Clone(m)
	for _, f := range features {
		e, err := f.entry()
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	e, err := c.entry()
	if err != nil {
		return nil, err
	}
	if obj, ok := e.raw.Value.(*hujson.Object); ok && len(obj.Members) == 0 {
		return all, nil
	}
	return append(all, e), nil
}

// String returns the text of the label.
func (m Metadata) String() string { return m.join(",") }

// join returns the text of the label with a separator between entries.
func (m Metadata) join(separator string) string {
	all := make([]string, len(m))
	for i, e := range m {
		raw := e.raw.Clone()
		raw.Minimize()
		all[i] = string(raw.Pack())
	}
	return "[" + strings.Join(all, separator) + "]"
}

// Substitute returns the metadata with the values of variables. It returns Invalid for a variable without a name.
func (m Metadata) Substitute(v Variables) (Metadata, error) {
	all := make(Metadata, len(m))
	for i, e := range m {
		raw, err := v.substitute(e.raw)
		if err != nil {
			return nil, err
		}
		if all[i], err = decodeEntry(raw); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Hook is a lifecycle command with the entry that it comes from.
type Hook struct {
	Origin  string // reference of a feature, or "devcontainer.json"
	Command Command
}

// MarshalJSON returns the command.
func (h Hook) MarshalJSON() ([]byte, error) { return json.Marshal(h.Command) }

// Merged is the effective configuration of an environment.
type Merged struct {
	Init        bool     `json:"init"`
	Privileged  bool     `json:"privileged"`
	CapAdd      []string `json:"capAdd,omitempty"`
	SecurityOpt []string `json:"securityOpt,omitempty"`
	// Entrypoints are shell commands that run at each start of the environment, as root, in this order.
	Entrypoints []string `json:"entrypoints,omitempty"`
	// Mounts include those that are not Supported. Of several with one target, the last counts.
	Mounts []Mount `json:"mounts,omitempty"`

	// The commands of a hook run one after another, in this order, as RemoteUser. After a failure, no more run.
	OnCreateCommands      []Hook `json:"onCreateCommands"`
	UpdateContentCommands []Hook `json:"updateContentCommands"`
	PostCreateCommands    []Hook `json:"postCreateCommands"`
	PostStartCommands     []Hook `json:"postStartCommands"`
	PostAttachCommands    []Hook `json:"postAttachCommands"`
	WaitFor               string `json:"waitFor,omitempty"`

	RemoteUser          string `json:"remoteUser,omitempty"` // "" means ContainerUser
	ContainerUser       string `json:"containerUser,omitempty"`
	UpdateRemoteUserUID *bool  `json:"updateRemoteUserUID,omitempty"`
	UserEnvProbe        string `json:"userEnvProbe,omitempty"`
	RemoteEnv           Env    `json:"remoteEnv"`
	ContainerEnv        Env    `json:"containerEnv"`

	ForwardPorts         []Port                    `json:"forwardPorts,omitempty"`
	PortsAttributes      map[string]PortAttributes `json:"portsAttributes"`
	OtherPortsAttributes *PortAttributes           `json:"otherPortsAttributes,omitempty"`

	// HostRequirements are the largest of all entries. Sizes are numbers of bytes.
	HostRequirements *HostRequirements            `json:"hostRequirements,omitempty"`
	OverrideCommand  *bool                        `json:"overrideCommand,omitempty"`
	ShutdownAction   string                       `json:"shutdownAction,omitempty"`
	Customizations   map[string][]json.RawMessage `json:"customizations,omitempty"`

	// Notes lists the merged properties that are not followed.
	Notes []Note `json:"-"`
}

// Merge returns the effective configuration of an environment.
func Merge(m Metadata) *Merged {
	out := &Merged{PortsAttributes: map[string]PortAttributes{}, RemoteEnv: Env{}, ContainerEnv: Env{}}
	for i := range m {
		e := &m[i]
		out.Init = out.Init || e.Init
		out.Privileged = out.Privileged || e.Privileged
		out.CapAdd = union(out.CapAdd, e.CapAdd)
		out.SecurityOpt = union(out.SecurityOpt, e.SecurityOpt)
		if e.Entrypoint != "" {
			out.Entrypoints = append(out.Entrypoints, e.Entrypoint)
		}
		out.Mounts = append(out.Mounts, e.Mounts...)
		out.addHooks(e)
		last(&out.WaitFor, e.WaitFor)
		last(&out.RemoteUser, e.RemoteUser)
		last(&out.ContainerUser, e.ContainerUser)
		last(&out.UpdateRemoteUserUID, e.UpdateRemoteUserUID)
		last(&out.UserEnvProbe, e.UserEnvProbe)
		out.RemoteEnv = out.RemoteEnv.over(e.RemoteEnv)
		out.ContainerEnv = out.ContainerEnv.over(e.ContainerEnv)
		for name, attributes := range e.PortsAttributes {
			out.PortsAttributes[name] = attributes
		}
		last(&out.OtherPortsAttributes, e.OtherPortsAttributes)
		last(&out.OverrideCommand, e.OverrideCommand)
		last(&out.ShutdownAction, e.ShutdownAction)
		for _, p := range e.ForwardPorts {
			out.ForwardPorts = union(out.ForwardPorts, []Port{Port(strings.TrimPrefix(string(p), "localhost:"))})
		}
		for tool, value := range e.Customizations {
			if out.Customizations == nil {
				out.Customizations = map[string][]json.RawMessage{}
			}
			out.Customizations[tool] = append(out.Customizations[tool], value)
		}
	}
	out.Mounts = lastMounts(out.Mounts)
	out.HostRequirements = mergeRequirements(m)
	out.Notes = out.notes()
	return out
}

func (m *Merged) addHooks(e *Entry) {
	origin := e.ID
	if origin == "" {
		origin = fileName
	}
	for _, name := range Hooks {
		if c := e.hook(name); c.Shell != "" || c.Args != nil || c.Parallel != nil {
			list := m.hooks(name)
			*list = append(*list, Hook{origin, c})
		}
	}
}

func (m *Merged) hooks(name string) *[]Hook {
	all := []*[]Hook{&m.OnCreateCommands, &m.UpdateContentCommands, &m.PostCreateCommands, &m.PostStartCommands,
		&m.PostAttachCommands}
	return all[slices.Index(Hooks, name)]
}

// Hooks returns the commands of a hook, which is one of the package's Hooks.
func (m *Merged) Hooks(name string) []Hook { return *m.hooks(name) }

// AttributesOf returns the attributes of a port of the environment: those of its number, else of the smallest range
// that has it, else those of all other ports. Patterns are about command lines, and match no port.
func (m *Merged) AttributesOf(port int) PortAttributes {
	var found PortAttributes
	if m.OtherPortsAttributes != nil {
		found = *m.OtherPortsAttributes
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(m.PortsAttributes)) {
		first, last, ok := strings.Cut(strings.TrimPrefix(name, "localhost:"), "-")
		if !ok {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || port < from || to < port {
			continue
		}
		if n := to - from + 1; size == 0 || n < size {
			found, size = m.PortsAttributes[name], n
		}
	}
	return found
}

// Users returns the user that the environment belongs to, and the user that runs commands in it. image is the user of
// the image; "" means root.
func (m *Merged) Users(image string) (container, remote string) {
	container = "root"
	last(&container, image)
	last(&container, m.ContainerUser)
	remote = container
	last(&remote, m.RemoteUser)
	return container, remote
}

// last sets a value unless the later one is zero.
func last[T comparable](value *T, later T) {
	var zero T
	if later != zero {
		*value = later
	}
}

// union returns the values of both lists, once each.
func union[T comparable](a, b []T) []T {
	for _, v := range b {
		if !slices.Contains(a, v) {
			a = append(a, v)
		}
	}
	return a
}

// lastMounts returns the last mount of each target.
func lastMounts(all []Mount) []Mount {
	var kept []Mount
	for i, m := range all {
		if !slices.ContainsFunc(all[i+1:], func(later Mount) bool { return later.Target == m.Target }) {
			kept = append(kept, m)
		}
	}
	return kept
}

func mergeRequirements(m Metadata) *HostRequirements {
	var out HostRequirements
	var memory, storage int64
	for _, e := range m {
		if h := e.HostRequirements; h != nil {
			out.CPUs = max(out.CPUs, h.CPUs)
			memory, storage = max(memory, Bytes(h.Memory)), max(storage, Bytes(h.Storage))
			out.GPU = out.GPU.with(h.GPU)
		}
	}
	out.Memory, out.Storage = decimal(memory), decimal(storage)
	if out == (HostRequirements{}) || out == (HostRequirements{GPU: out.GPU}) && !out.GPU.Wanted {
		return nil
	}
	return &out
}

// with returns the demand of both.
func (g *GPU) with(other *GPU) *GPU {
	switch {
	case other == nil || g != nil && g.Wanted && !other.Wanted:
		return g
	case g == nil || !g.Wanted:
		return other
	}
	return &GPU{Wanted: true, Optional: g.Optional && other.Optional, Cores: max(g.Cores, other.Cores),
		Memory: decimal(max(Bytes(g.Memory), Bytes(other.Memory)))}
}

// decimal returns a number of bytes as text; "" for 0.
func decimal(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
