package devcontainer

import (
	"fmt"
	"strings"
)

// Note says that a property is not followed, and why.
type Note struct {
	Property string `json:"property"`
	// Refused means that the environment lacks a part that the property demands. Otherwise the property is ignored
	// without harm.
	Refused bool   `json:"refused,omitempty"`
	Text    string `json:"text"` // one sentence
}

// obsolete are properties of editors from before customizations.
var obsolete = map[string]bool{"extensions": true, "settings": true, "devPort": true}

// ignoredBecause is the end of the sentence about a property that Config does not have.
func ignoredBecause(property string) string {
	if obsolete[property] {
		return "is ignored: it is for editors"
	}
	return "is ignored: dev containers have no such property"
}

// notesOf collects notes.
type notesOf []Note

func (n *notesOf) add(when, refused bool, property, format string, args ...any) {
	if when {
		*n = append(*n, Note{property, refused, property + " " + fmt.Sprintf(format, args...)})
	}
}

func (n *notesOf) refuse(when bool, property, because string, args ...any) {
	n.add(when, true, property, "is refused: "+because, args...)
}

func (n *notesOf) ignore(when bool, property, because string, args ...any) {
	n.add(when, false, property, "is ignored: "+because, args...)
}

// Notes lists the properties of the file that are not followed. Merge lists those that features and images have, too.
func (c *Config) Notes() []Note {
	n := notesOf(append([]Note(nil), c.doc.notes...))
	n.refuse(len(c.DockerComposeFile) > 0, "dockerComposeFile",
		"an environment is one sandbox, without services beside it")
	n.add(c.withoutImage(), false, "image", "is not set, and nor is build.dockerfile: the default image is used")
	n.ignore(c.Service != "", "service", "it belongs to dockerComposeFile")
	n.ignore(len(c.RunServices) > 0, "runServices", "it belongs to dockerComposeFile")
	n.refuse(!c.InitializeCommand.IsZero(), "initializeCommand",
		"it would run outside the sandbox, on the machine of the server")
	n.ignore(len(c.RunArgs) > 0, "runArgs",
		"its flags are for Docker, and sandboxes are not containers of Docker (%.200s)",
		strings.Join(c.RunArgs, " "))
	n.ignore(c.AppPort != nil, "appPort", "sandboxes publish no ports on the host; forwardPorts names ports to forward")
	n.ignore(c.WorkspaceMount != nil, "workspaceMount",
		"the repository is a clone in the sandbox, not a mount of the host")
	if c.Build != nil {
		n.ignore(len(c.Build.CacheFrom) > 0, "build.cacheFrom", "builds have a cache of their own")
		n.ignore(len(c.Build.Options) > 0, "build.options", "its flags are for Docker (%.200s)",
			strings.Join(c.Build.Options, " "))
	}
	for _, id := range c.OverrideFeatureInstallOrder {
		n.ignore(!c.hasFeature(id), "overrideFeatureInstallOrder", "%.200s is not in features", id)
	}
	return n
}

// withoutImage reports whether the file has no image, as some for Codespaces.
func (c *Config) withoutImage() bool {
	return c.Image == "" && c.DockerFile == "" && len(c.DockerComposeFile) == 0 && (c.Build == nil ||
		c.Build.Dockerfile == "")
}

// hasFeature reports whether features has an unversioned reference.
func (c *Config) hasFeature(id string) bool {
	for written := range c.Features {
		if written == id || withoutVersion(written) == withoutVersion(id) {
			return true
		}
	}
	return false
}

// notes lists the merged properties that sandboxes do not have.
func (m *Merged) notes() []Note {
	var n notesOf
	n.refuse(m.Privileged, "privileged", "no program in a sandbox gets rights on the host")
	n.ignore(len(m.CapAdd) > 0, "capAdd", "capabilities are those of the sandbox's own kernel (%.200s)",
		strings.Join(m.CapAdd, ", "))
	n.ignore(len(m.SecurityOpt) > 0, "securityOpt", "the sandbox isolates programs in another way (%.200s)",
		strings.Join(m.SecurityOpt, ", "))
	for _, mount := range m.Mounts {
		switch {
		case mount.Type == "bind":
			n.refuse(true, "mounts", "%.200s would show the directory %.200s of the host", mount.Target, mount.Source)
		case !mount.Supported():
			n.refuse(true, "mounts", "%.200s has the type %.100q, and only volume and tmpfs exist", mount.Target,
				mount.Type)
		}
	}
	n.ignore(m.OverrideCommand != nil && !*m.OverrideCommand, "overrideCommand",
		"the command of the image does not start by itself")
	n.ignore(m.ShutdownAction != "", "shutdownAction", "the limits of the sandbox decide when it stops")
	n.ignore(m.UpdateRemoteUserUID != nil && *m.UpdateRemoteUserUID, "updateRemoteUserUID",
		"no files of the host are mounted, so that no owner must match")
	if h := m.HostRequirements; h != nil && h.GPU != nil && h.GPU.Wanted {
		n.add(true, !h.GPU.Optional, "hostRequirements.gpu",
			"does not choose a graphics processor: the request of the sandbox names its kind")
	}
	return n
}
