package container

import (
	"path"
	"strings"

	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// Sources are the files of a repository that the image of a dev container is built from, beside those in .devcontainer.
type Sources struct {
	Dockerfile string // path; "" without one

	base devcontainer.Base
}

// SourcesOf returns the sources of a description. One that is wrong has none.
func SourcesOf(config string, text []byte) Sources {
	c, err := devcontainer.Parse(config, text)
	if err != nil {
		return Sources{}
	}
	base, err := c.Base()
	if err != nil {
		return Sources{}
	}
	return Sources{Dockerfile: base.Dockerfile, base: base}
}

// Paths returns patterns of git for the sources, given the text of the Dockerfile. The whole repository is not one of
// them, although a Dockerfile may copy it: then each commit would lead to a whole build.
func (s Sources) Paths(dockerfile string) []string {
	ignored := path.Join(s.base.Context, ".dockerignore")
	all := []string{s.Dockerfile, s.Dockerfile + ".dockerignore", ignored}
	for _, name := range plan.Sources(dockerfile, s.base.Args) {
		if name = path.Join(s.base.Context, name); strings.Trim(name, "*./") != "" {
			all = append(all, name, name+"/**")
		}
	}
	for i := range all {
		all[i] = ":(glob)" + all[i]
	}
	return all
}
