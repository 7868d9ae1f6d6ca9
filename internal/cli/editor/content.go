package editor

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// paths maps the files of a session to those of this machine. The zero value maps nothing.
type paths struct {
	local  string // directory of this machine
	inside string // the same directory in the sandbox
}

// out returns the path on this machine of a file in the sandbox; ok is false for files that this machine does not have.
func (p paths) out(name string) (local string, ok bool) {
	if p.local == "" || name == "" {
		return name, false
	}
	if !path.IsAbs(name) {
		name = path.Join(p.inside, name)
	}
	rest, ok := strings.CutPrefix(path.Clean(name)+"/", p.inside+"/")
	if !ok {
		return name, false
	}
	return filepath.Join(p.local, filepath.FromSlash(rest)), true
}

// in returns the path in the sandbox of a file of this machine; ok is false for files that the sandbox does not have.
func (p paths) in(name string) (inside string, ok bool) {
	if p.local == "" {
		return name, false
	}
	rest, err := filepath.Rel(p.local, name)
	if err != nil || !filepath.IsLocal(rest) {
		return name, false
	}
	return path.Join(p.inside, filepath.ToSlash(rest)), true
}

// named returns a URI as the agent can use it: a file by its path in the sandbox. note is for the agent, too.
func (p paths) named(uri string) (name, note string) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return uri, ""
	}
	inside, ok := p.in(filepath.FromSlash(u.Path))
	if !ok {
		return uri, " (not in the sandbox)"
	}
	if u.Fragment != "" {
		inside += "#" + u.Fragment
	}
	return inside, ""
}

// block is a block of content in a prompt.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Name     string `json:"name"`
	URI      string `json:"uri"`
	Resource struct {
		URI  string  `json:"uri"`
		Text *string `json:"text"`
	} `json:"resource"`
}

// promptText returns a prompt as text. Embedded files follow at its end, since editors put a mention of them into the
// text.
func promptText(blocks []block, p paths) (string, error) {
	var text, files strings.Builder
	for _, b := range blocks {
		switch {
		case b.Type == "text":
			text.WriteString(b.Text)
		case b.Type == "resource_link":
			name, note := p.named(b.URI)
			fmt.Fprintf(&text, "[@%s](%s)%s", b.Name, name, note)
		case b.Type == "resource" && b.Resource.Text != nil:
			name, _ := p.named(b.Resource.URI)
			fmt.Fprintf(&text, "[@%s](%s)", path.Base(name), name)
			fmt.Fprintf(&files, "\n\n<context ref=%q>\n%s\n</context>", name, *b.Resource.Text)
		case b.Type == "resource":
			return "", errors.Remedy(errors.Newf(errors.Invalid, "%s: a prompt cannot contain binary files",
				b.Resource.URI), "add the file to the repository, and name its path")
		default:
			return "", errors.Remedy(errors.Newf(errors.Invalid, "a prompt cannot contain content of the type %.40q",
				b.Type), "put it into a file of the repository, and name its path")
		}
	}
	return text.String() + files.String(), nil
}

// mcpServer is a server that the editor passes to a session.
type mcpServer struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Env     []pair   `json:"env"`
	URL     string   `json:"url"`
	Headers []pair   `json:"headers"`
}

type pair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// unfit matches the characters that the name of a server must not have.
var unfit = pattern.New(`[^A-Za-z0-9_-]+`)

// mergeServers adds the editor's servers to a configuration in the format of .mcp.json, and returns their names.
func mergeServers(base json.RawMessage, list []mcpServer) (json.RawMessage, []string, error) {
	if len(list) == 0 {
		return base, nil, nil
	}
	var file struct {
		Servers map[string]any `json:"mcpServers"`
	}
	jsonrpc.Decode(base, &file)
	if file.Servers == nil {
		file.Servers = map[string]any{}
	}
	var names []string
	for _, s := range list {
		name := strings.TrimLeft(unfit().ReplaceAllString(s.Name, "-"), "_-")
		entry := map[string]any{}
		switch {
		case s.Type == "" || s.Type == "stdio":
			entry["type"], entry["command"], entry["args"], entry["env"] = "stdio", s.Command, s.Args, byName(s.Env)
		case s.Type == "http":
			entry["type"], entry["url"], entry["headers"] = "http", s.URL, byName(s.Headers)
		default:
			return nil, nil, errors.Remedy(errors.Newf(errors.Invalid, "MCP server %.100q: the transport %.40q is not "+
				"supported", s.Name, s.Type), "use stdio or http, or remove the server from the editor's settings")
		}
		file.Servers[name] = entry
		names = append(names, name)
	}
	text, err := json.Marshal(file)
	return text, names, errors.Wrapf(err, "encode the MCP servers")
}

func byName(pairs []pair) map[string]string {
	all := map[string]string{}
	for _, p := range pairs {
		all[p.Name] = p.Value
	}
	return all
}
