package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// systemFile is read when the data directory has no configuration of its own.
const systemFile = "/etc/harvest/config.yaml"

// fromEnv returns the settings of the environment.
func fromEnv(env func(string) string) []Setting {
	var all []Setting
	for _, o := range options {
		if v := env(o.env()); v != "" {
			all = append(all, Setting{Key: o.key, Value: v, Source: o.env()})
		}
	}
	return all
}

// dataDir returns the data directory that is known before a file is read.
func dataDir(standard string, over []Setting) string {
	for _, s := range slices.Backward(over) {
		if s.Key == "data" {
			return s.Value
		}
	}
	return standard
}

// readFile returns the settings of the configuration file, and its problems. There are no settings without a
// file. A file that the user named must exist.
func readFile(path string, env func(string) string, data string) (settings []Setting, problems []string) {
	wanted, by := path, "--config"
	if wanted == "" {
		wanted, by = env("HARVEST_CONFIG"), "HARVEST_CONFIG"
	}
	candidates := []string{wanted}
	if wanted == "" {
		candidates = []string{filepath.Join(data, "config.yaml"), systemFile}
	}
	for _, path := range candidates {
		text, err := os.ReadFile(path)
		switch {
		case err == nil:
			return parse(path, text)
		case wanted != "":
			return nil, []string{by + ": " + path + ": " + reason(err) + "; name an existing, readable file"}
		// An unreadable data directory of another user is reported where it is opened.
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return nil, []string{path + ": " + reason(err) + "; repair or remove it"}
		}
	}
	return nil, nil
}

// reason is err without the path, which the surrounding sentence contains.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func parse(path string, text []byte) (settings []Setting, problems []string) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) && syntax.Token != nil {
			return nil, []string{fmt.Sprintf("%s:%d: invalid YAML: %s", path, syntax.Token.Position.Line,
				syntax.Message)}
		}
		return nil, []string{path + ": invalid YAML"}
	}
	for i, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case i > 0:
			problems = append(problems, at(path, doc.Body)+": more than one document; write only one")
		default:
			flatten(path, "", doc.Body, &settings, &problems)
		}
	}
	return settings, problems
}

// flatten turns nested mappings into keys with dots.
func flatten(path, prefix string, node ast.Node, settings *[]Setting, problems *[]string) {
	var pairs []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	case *ast.CommentGroupNode:
		return
	default:
		*problems = append(*problems, at(path, node)+": write options as \"key: value\"")
		return
	}
	for _, pair := range pairs {
		key := prefix + pair.Key.GetToken().Value
		switch v := pair.Value.(type) {
		case *ast.MappingNode, *ast.MappingValueNode:
			flatten(path, key+".", v, settings, problems)
		case *ast.StringNode:
			// The decoder drops tabs within text that has no quotes.
			if t := v.GetToken(); t.Type == token.StringType && strings.Contains(strings.TrimSpace(t.Origin), "\t") {
				*problems = append(*problems, at(path, pair)+": "+key+" has a tab; put the value in quotes")
				continue
			}
			*settings = append(*settings, Setting{Key: key, Value: v.Value, Source: at(path, pair)})
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			*settings = append(*settings, Setting{Key: key, Value: v.GetToken().Value, Source: at(path, pair)})
		case *ast.NullNode:
			*problems = append(*problems, at(path, pair)+": "+key+" has no value; write one, or remove the line")
		default:
			*problems = append(*problems, at(path, pair)+": "+key+" must be a plain value")
		}
	}
}

func at(path string, node ast.Node) string {
	line := 1
	if t := node.GetToken(); t != nil && t.Position != nil {
		line = t.Position.Line
	}
	return fmt.Sprintf("%s:%d", path, line)
}
