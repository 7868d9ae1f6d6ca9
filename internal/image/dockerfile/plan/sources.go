package plan

import (
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// Sources returns the paths in the context that a Dockerfile copies or mounts, as they are written: they may have
// wildcards, "" is the whole context. args are build arguments. Of a path with an unknown variable, it is the directory
// before that. A text that is no Dockerfile has none.
func Sources(text string, args map[string]string) []string {
	if len(text) > maxText {
		return nil
	}
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil
	}
	stages, globals, err := instructions.Parse(parsed.AST, unlinted())
	if err != nil {
		return nil
	}
	s := sources{lex: shell.NewLex(parsed.EscapeToken), given: args}
	for _, value := range args {
		s.longest = max(s.longest, len(value))
	}
	for i := range globals {
		s.arg(globals[i].Args)
	}
	for _, stage := range stages {
		for _, c := range stage.Commands {
			s.command(c)
		}
	}
	return s.found
}

// sources collects paths. Variables of one stage are taken for those of later ones, too: a path too many is no harm.
type sources struct {
	lex     *shell.Lex
	given   map[string]string
	env     []string // NAME=value; later ones count
	longest int      // of the values, in bytes
	found   []string
}

const (
	// mostVariables limits the variables that are known, and mostExpanded a word with their values, in bytes: a few
	// lines could fill the memory, as each value may have the one before it twice.
	mostVariables = 1000
	mostExpanded  = 64 << 10
)

func (s *sources) command(c instructions.Command) {
	switch c := c.(type) {
	case *instructions.ArgCommand:
		s.arg(c.Args)
	case *instructions.EnvCommand:
		for _, pair := range c.Env {
			s.set(pair.Key, pair.Value)
		}
	case *instructions.CopyCommand:
		if c.From == "" {
			s.add(c.SourcePaths...)
		}
	case *instructions.AddCommand:
		s.add(c.SourcePaths...)
	case *instructions.RunCommand:
		// Without the expansion, mounts have no sources. add expands them again, in its own way.
		if c.Expand(func(word string) (string, error) { return word, nil }) != nil {
			return
		}
		for _, m := range instructions.GetMounts(c) {
			if m.Type == instructions.MountTypeBind && m.From == "" {
				s.add(m.Source)
			}
		}
	}
}

func (s *sources) arg(all []instructions.KeyValuePairOptional) {
	for _, pair := range all {
		if value, ok := s.given[pair.Key]; ok {
			s.env = append(s.env, pair.Key+"="+value)
		} else if pair.Value != nil {
			s.set(pair.Key, *pair.Value)
		}
	}
}

// set sets a variable, whose value may have others.
func (s *sources) set(name, value string) {
	if result, ok := s.expand(value); ok {
		s.env = append(s.env, name+"="+result)
		s.longest = max(s.longest, len(result))
	}
}

// expand replaces the variables of a word, if all are known and the result is not too large.
func (s *sources) expand(word string) (string, bool) {
	if len(s.env) > mostVariables || len(word)+strings.Count(word, "$")*s.longest > mostExpanded {
		return "", false
	}
	result, err := s.lex.ProcessWordWithMatches(word, s)
	return result.Result, err == nil && len(result.Unmatched) == 0
}

func (s *sources) add(all ...string) {
	for _, name := range all {
		if strings.Contains(name, "://") || strings.HasPrefix(name, "git@") {
			continue
		}
		if result, ok := s.expand(name); ok {
			name = result
		} else {
			known, _, _ := strings.Cut(name, "$")
			name = path.Dir("/" + known + "x")
		}
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		if !slices.Contains(s.found, name) {
			s.found = append(s.found, name)
		}
	}
}

// Get implements shell.EnvGetter.
func (s *sources) Get(name string) (string, bool) {
	for _, pair := range slices.Backward(s.env) {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Keys implements shell.EnvGetter.
func (s *sources) Keys() (all []string) {
	for _, pair := range s.env {
		name, _, _ := strings.Cut(pair, "=")
		all = append(all, name)
	}
	return all
}
