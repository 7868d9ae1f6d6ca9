package gvisor

import (
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/container/filter"
)

// Isolation implements engine.Isolator. Unsupported: the kind is unknown, or this machine cannot run containers.
func (e *Engine) Isolation(kind string) (engine.Engine, error) {
	switch kind {
	case engine.GVisor:
		return &Engine{machine: e.machine}, nil
	case engine.Container:
		return e.Containers()
	}
	return nil, errors.Remedy(errors.Newf(errors.Unsupported, "there is no isolation %.100q on this machine", kind),
		"use "+engine.GVisor+" or "+engine.Container)
}

// Containers returns an engine whose new sandboxes are containers, which share the kernel of this machine. It has the
// images, the volumes and the handles of e, and ends with it. Unsupported: this machine cannot run containers.
func (e *Engine) Containers() (*Engine, error) {
	why := ""
	switch {
	case e.rootless:
		why = "the server does not run as root"
	case e.shared != nil:
		why = errors.Message(e.shared)
	case !e.cgroups:
		why = "it has no cgroups for their limits"
	}
	if why != "" {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "there are no containers on this machine: %s", why),
			"use "+engine.GVisor+", or read docs/isolation.md")
	}
	program, err := filter.Program()
	return &Engine{machine: e.machine, filter: program}, err
}

// containersLack is what containers cannot do, in addition to what sandboxes of gVisor cannot.
var containersLack = []string{"no limit of disk: overlayfs has none",
	"no limit of files in volumes: the kernel does not count them", "no checkpoints of memory",
	"no owners of files above 65535", "crashes are reported of commands alone, not of the processes that they start"}

// ofContainers returns what containers can do, given what sandboxes of gVisor can do.
func ofContainers(c engine.Capabilities) engine.Capabilities {
	c.Isolation = "container (shares this machine's kernel)"
	c.Memory = false
	c.Limits = []string{"cpu", "memory", "processes", "files"}
	c.Missing = append(c.Missing, containersLack...)
	return c
}
