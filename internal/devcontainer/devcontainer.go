// Package devcontainer reads dev container configurations of repositories, and says what they mean: the image to
// build, the features to install in it, and the commands, users, variables, mounts and ports of an environment.
//
// It follows the specification at https://containers.dev. It runs nothing: its callers build images and run commands.
//
// A caller finds the file (Find, Choose), decodes it (Parse), and puts in the values of variables (Config.Substitute).
// Resolve returns the features in the order of their installation, and Merge the effective configuration.
package devcontainer

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Entry has the properties that a devcontainer.json, a feature and the metadata of an image have in common. Merge
// combines entries.
type Entry struct {
	// ID is the reference of the feature that the entry comes from, such as "ghcr.io/devcontainers/features/go:1"; ""
	// for other entries. In a Feature, it is the feature's own short id, such as "go".
	ID string `json:"id,omitempty"`

	Init        bool     `json:"init,omitempty"`
	Privileged  bool     `json:"privileged,omitempty"`
	CapAdd      []string `json:"capAdd,omitempty"`
	SecurityOpt []string `json:"securityOpt,omitempty"`
	Entrypoint  string   `json:"entrypoint,omitempty"` // shell command that runs at each start, as root
	Mounts      []Mount  `json:"mounts,omitempty"`

	OnCreateCommand      Command `json:"onCreateCommand,omitzero"`
	UpdateContentCommand Command `json:"updateContentCommand,omitzero"`
	PostCreateCommand    Command `json:"postCreateCommand,omitzero"`
	PostStartCommand     Command `json:"postStartCommand,omitzero"`
	PostAttachCommand    Command `json:"postAttachCommand,omitzero"`
	// WaitFor is the name of the last command that must have ended before the environment is usable; "" means
	// updateContentCommand.
	WaitFor string `json:"waitFor,omitempty"`

	ContainerUser       string `json:"containerUser,omitempty"`
	RemoteUser          string `json:"remoteUser,omitempty"`
	UpdateRemoteUserUID *bool  `json:"updateRemoteUserUID,omitempty"`
	UserEnvProbe        string `json:"userEnvProbe,omitempty"` // "" means loginInteractiveShell
	ContainerEnv        Env    `json:"containerEnv,omitzero"`
	RemoteEnv           Env    `json:"remoteEnv,omitzero"`

	ForwardPorts         []Port                    `json:"forwardPorts,omitempty"`
	PortsAttributes      map[string]PortAttributes `json:"portsAttributes,omitempty"` // by port, range or pattern
	OtherPortsAttributes *PortAttributes           `json:"otherPortsAttributes,omitempty"`

	HostRequirements *HostRequirements          `json:"hostRequirements,omitempty"`
	OverrideCommand  *bool                      `json:"overrideCommand,omitempty"`
	ShutdownAction   string                     `json:"shutdownAction,omitempty"`
	Customizations   map[string]json.RawMessage `json:"customizations,omitempty"` // by tool

	// raw is the object that the entry was decoded from. Variables are in it by name.
	raw hujson.Value
}

// Config is a devcontainer.json, as Parse returns it.
type Config struct {
	Entry

	Name  string `json:"name,omitempty"`
	Image string `json:"image,omitempty"`
	Build *Build `json:"build,omitempty"`
	// DockerFile and Context are an older form of Build. Base understands both.
	DockerFile string `json:"dockerFile,omitempty"`
	Context    string `json:"context,omitempty"`

	Features                    map[string]Values `json:"features,omitempty"` // by reference
	OverrideFeatureInstallOrder []string          `json:"overrideFeatureInstallOrder,omitempty"`

	WorkspaceFolder string            `json:"workspaceFolder,omitempty"`
	WorkspaceMount  *string           `json:"workspaceMount,omitempty"`
	Secrets         map[string]Secret `json:"secrets,omitempty"` // by name of the environment variable

	// The properties below have no effect, except that Notes reports them.
	InitializeCommand Command         `json:"initializeCommand,omitzero"`
	RunArgs           []string        `json:"runArgs,omitempty"`
	AppPort           json.RawMessage `json:"appPort,omitempty"`
	DockerComposeFile Strings         `json:"dockerComposeFile,omitempty"`
	Service           string          `json:"service,omitempty"`
	RunServices       []string        `json:"runServices,omitempty"`

	doc *document
}

// Build says how to build an image. Paths are relative to the directory of the devcontainer.json.
type Build struct {
	Dockerfile string   `json:"dockerfile,omitempty"`
	Context    string   `json:"context,omitempty"`
	Args       Values   `json:"args,omitempty"`
	Target     string   `json:"target,omitempty"`
	CacheFrom  Strings  `json:"cacheFrom,omitempty"`
	Options    []string `json:"options,omitempty"`
}

// Values are build arguments, or the values of a feature's options. Booleans are "true" and "false". In a file, a
// string is short for the option "version", and a boolean for no options.
type Values map[string]string

// PortAttributes describe a forwarded port.
type PortAttributes struct {
	Label            string `json:"label,omitempty"`
	Protocol         string `json:"protocol,omitempty"` // "http" or "https"
	OnAutoForward    string `json:"onAutoForward,omitempty"`
	RequireLocalPort *bool  `json:"requireLocalPort,omitempty"`
	ElevateIfNeeded  *bool  `json:"elevateIfNeeded,omitempty"`
}

// HostRequirements is the least hardware of an environment. Memory and Storage are written like "8gb"; Bytes reads
// them.
type HostRequirements struct {
	CPUs    int    `json:"cpus,omitempty"`
	Memory  string `json:"memory,omitempty"`
	Storage string `json:"storage,omitempty"`
	GPU     *GPU   `json:"gpu,omitempty"`
}

// Secret describes an environment variable whose value the user should provide.
type Secret struct {
	Description      string `json:"description,omitempty"`
	DocumentationURL string `json:"documentationUrl,omitempty"`
}

// Parse decodes a devcontainer.json: JSON with comments and trailing commas. file is its path in the repository.
// Variables stay as they are written. Errors are Invalid, or Exhausted for a file that is too large; they name line and
// column.
func Parse(file string, text []byte) (*Config, error) {
	doc, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	return decodeConfig(doc)
}

func decodeConfig(doc *document) (*Config, error) {
	if err := doc.check(configShape); err != nil {
		return nil, err
	}
	c := &Config{doc: doc}
	if err := decode(doc.root, c); err != nil {
		return nil, errors.Wrapf(err, "decode %s", doc.name)
	}
	return c, nil
}

// Path returns the path of the file in the repository.
func (c *Config) Path() string { return c.doc.name }

// configEntry lists the properties of a devcontainer.json that an image keeps in its metadata.
var configEntry = []string{"onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand",
	"postAttachCommand", "waitFor", "customizations", "mounts", "containerEnv", "containerUser", "init", "privileged",
	"capAdd", "securityOpt", "remoteUser", "userEnvProbe", "remoteEnv", "overrideCommand", "portsAttributes",
	"otherPortsAttributes", "forwardPorts", "shutdownAction", "updateRemoteUserUID", "hostRequirements"}

// entry returns the properties that an image keeps in its metadata.
func (c *Config) entry() (Entry, error) { return decodeEntry(pick(c.doc.root, configEntry)) }

func decodeEntry(raw hujson.Value) (Entry, error) {
	var e Entry
	if err := decode(raw, &e); err != nil {
		return Entry{}, errors.Wrapf(err, "decode an entry")
	}
	e.raw = raw
	return e, nil
}

// Base is the image of an environment before its features are installed: either the name of an image, or a build. The
// zero Base means the caller's default image.
type Base struct {
	Image string // reference; "" for a build

	// Dockerfile and Context are paths in the repository.
	Dockerfile, Context string
	Args                map[string]string
	Target              string
}

// Base returns the image to start from. It returns Unsupported for Docker Compose, and Invalid for paths that leave the
// repository.
func (c *Config) Base() (Base, error) {
	if len(c.DockerComposeFile) > 0 {
		err := errors.Newf(errors.Unsupported, "%s: dockerComposeFile is not supported: an environment is one sandbox",
			c.Path())
		return Base{}, errors.Remedy(err, "write a second configuration with image or build, such as "+
			".devcontainer/sandbox/devcontainer.json, and choose it by its name")
	}
	b := Build{}
	if c.Build != nil {
		b = *c.Build
	}
	if c.DockerFile != "" {
		b.Dockerfile, b.Context = c.DockerFile, c.Context
	}
	if b.Dockerfile == "" {
		return Base{Image: c.Image}, nil
	}
	base := Base{Args: b.Args, Target: b.Target}
	var err error
	if base.Dockerfile, err = c.inRepository("dockerfile", b.Dockerfile); err != nil {
		return Base{}, err
	}
	if b.Context == "" {
		base.Context = path.Dir(base.Dockerfile)
		return base, nil
	}
	base.Context, err = c.inRepository("context", b.Context)
	return base, err
}

// inRepository returns a path that is relative to the file as one relative to the root of the repository.
func (c *Config) inRepository(property, name string) (string, error) {
	joined := path.Join(path.Dir(c.Path()), name)
	if path.IsAbs(name) || joined == ".." || strings.HasPrefix(joined, "../") {
		err := errors.Newf(errors.Invalid, "%s: %s %.200q leaves the repository", c.Path(), property, name)
		return "", errors.Remedy(err, "use a path relative to %s, inside the repository", path.Dir(c.Path()))
	}
	return joined, nil
}

// Hooks are the names of the lifecycle commands that run in an environment, in their order.
var Hooks = []string{"onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand",
	"postAttachCommand"}

// hook returns a lifecycle command by its name.
func (e *Entry) hook(name string) Command {
	all := []Command{e.OnCreateCommand, e.UpdateContentCommand, e.PostCreateCommand, e.PostStartCommand,
		e.PostAttachCommand}
	return all[slices.Index(Hooks, name)]
}
