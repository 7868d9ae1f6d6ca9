package runsc

import (
	"encoding/json"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/RelevanceAI/harvest/client/errors"
)

// spec is the part of specs.Spec that Harvest's sandboxes use, with the same JSON. The first encoding of a type
// builds permanent tables for all types in it. Those of specs.Spec, which includes other systems, are more than
// a tenth of a keeper's heap.
type spec struct {
	Version     string            `json:"ociVersion"`
	Process     *specProcess      `json:"process,omitempty"`
	Root        *specs.Root       `json:"root,omitempty"`
	Hostname    string            `json:"hostname,omitempty"`
	Mounts      []specs.Mount     `json:"mounts,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Linux       *specLinux        `json:"linux,omitempty"`
}

type specProcess struct {
	Args            []string                 `json:"args,omitempty"`
	Env             []string                 `json:"env,omitempty"`
	Cwd             string                   `json:"cwd"`
	Capabilities    *specs.LinuxCapabilities `json:"capabilities,omitempty"`
	Rlimits         []specs.POSIXRlimit      `json:"rlimits,omitempty"`
	NoNewPrivileges bool                     `json:"noNewPrivileges,omitempty"`
}

type specLinux struct {
	UIDMappings []specs.LinuxIDMapping `json:"uidMappings,omitempty"`
	GIDMappings []specs.LinuxIDMapping `json:"gidMappings,omitempty"`
	Namespaces  []specs.LinuxNamespace `json:"namespaces,omitempty"`
}

func specOf(s *specs.Spec) *spec {
	of := &spec{Version: s.Version, Root: s.Root, Hostname: s.Hostname, Mounts: s.Mounts, Annotations: s.Annotations}
	if p := s.Process; p != nil {
		of.Process = &specProcess{Args: p.Args, Env: p.Env, Cwd: p.Cwd, Capabilities: p.Capabilities,
			Rlimits: p.Rlimits, NoNewPrivileges: p.NoNewPrivileges}
	}
	if l := s.Linux; l != nil {
		of.Linux = &specLinux{UIDMappings: l.UIDMappings, GIDMappings: l.GIDMappings, Namespaces: l.Namespaces}
	}
	return of
}

// EncodeSpec returns the JSON of a spec that only uses the fields of Harvest's sandboxes.
func EncodeSpec(s *specs.Spec) ([]byte, error) {
	b, err := json.Marshal(specOf(s))
	return b, errors.Wrapf(err, "encode spec")
}
