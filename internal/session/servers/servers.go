// Package servers gives agents their MCP servers: it writes their configuration and keys into the sandbox, and delays
// the first prompt until they are ready.
package servers

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

const (
	configDir  = "/tmp/harvest-mcp" // directory of the configuration, which contains no secrets
	configFile = "servers.json"
)

// findScript takes the repository's directory and paths. It prints the paths that exist, an empty line, and the
// repository's MCP configuration.
const findScript = `
dir=$1
shift
for f in "$@"; do [ ! -e "$f" ] || echo "$f"; done
echo
[ ! -f "$dir/.mcp.json" ] || head -c 65537 "$dir/.mcp.json"`

// Source describes where the servers of a session's agent come from.
type Source struct {
	Sandbox shell.Sandbox
	Secrets *secret.Vault // with keys of built-in servers; nil for none
	Names   []string      // of the secrets that are searched first
	Dir     string        // of the repository, which may have servers of its own
	Own     []byte        // the user's own servers, in the format of mcp.Parse
	Limits  agent.MCPLimits
}

// Config is the configuration of an agent's MCP servers.
type Config struct {
	File    string            // in the sandbox; "" without servers
	Env     map[string]string // that the servers need
	Invalid []string          // why descriptions of servers are not used
}

// Write writes the configuration of the servers into the sandbox. If a server of the repository is invalid, the other
// servers are used. On an error, the result has only Invalid.
func (src Source) Write(ctx context.Context, c agent.MCPConfigurer) (Config, error) {
	secrets := map[string]string{} // names, by key
	known := mcp.Enabled(mcp.Servers(), func(key string) bool {
		if src.Secrets == nil {
			return false
		}
		name, _, err := src.Secrets.Find(ctx, src.Sandbox.Account, src.Names, []string{key})
		if err != nil {
			logf.Errorf(ctx, "look for %s: %v", key, err)
		}
		secrets[key] = name
		return name != ""
	})
	params := []string{src.Dir}
	for _, server := range known {
		params = append(params, filesOf(server)...)
	}
	out, err := src.Sandbox.Output(ctx, findScript, params...)
	if err != nil {
		return Config{}, err
	}
	there, own, _ := strings.Cut(out, "\n\n")
	if strings.HasPrefix(out, "\n") {
		there, own = "", out[1:]
	}
	files := strings.Split(there, "\n")
	servers := slices.DeleteFunc(known, func(server mcp.Server) bool {
		return slices.ContainsFunc(filesOf(server), func(f string) bool { return !slices.Contains(files, f) })
	})
	servers, values, err := src.lend(ctx, servers, secrets)
	if err != nil {
		return Config{}, err
	}
	servers, env, err := src.hideKeys(ctx, servers, values)
	if err != nil {
		return Config{}, err
	}
	var invalid []string
	for _, text := range []string{own, string(src.Own)} {
		if strings.TrimSpace(text) == "" {
			continue
		}
		others, err := mcp.Parse([]byte(text))
		if err != nil {
			invalid = append(invalid, errors.Message(err))
			continue
		}
		servers = mcp.Merge(servers, others)
	}
	if len(servers) == 0 {
		return Config{Invalid: invalid}, nil
	}
	config, err := c.MCPConfig(servers, src.Limits)
	if err == nil {
		err = src.Sandbox.CopyFile(ctx, configDir, configFile, config)
	}
	if err != nil {
		return Config{Invalid: invalid}, err
	}
	return Config{File: path.Join(configDir, configFile), Env: env, Invalid: invalid}, nil
}

// lend lends the sandbox the secrets of servers, and returns what it has of them by key, without the servers whose
// secrets stay outside.
func (src Source) lend(ctx context.Context, servers []mcp.Server, secrets map[string]string) (out []mcp.Server,
	values map[string]string, err error) {
	values = map[string]string{}
	for _, s := range servers {
		if s.Secret != "" {
			held, err := fleet.LendSecret(ctx, src.Sandbox.Fleet, src.Sandbox.Account, src.Sandbox.ID,
				secrets[s.Secret])
			if errors.Is(err, errors.NotFound) || err == nil && held[s.Secret] == "" {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			values[s.Secret] = held[s.Secret]
		}
		out = append(out, s)
	}
	return out, values, nil
}

// withKeys runs a command with the environment variables of a file.
const withKeys = `set -a; . "$0"; set +a; exec "$@"`

// hideKeys returns servers that read their keys from separate files, so that the environment of the agent and its
// commands does not contain them. A server at a URL has no process that could read a file: its key is in env, which
// is for the agent.
func (src Source) hideKeys(ctx context.Context, servers []mcp.Server,
	values map[string]string) (out []mcp.Server, env map[string]string, err error) {
	env = map[string]string{}
	for _, s := range servers {
		if s.Secret == "" {
			out = append(out, s)
			continue
		}
		if s.URL != "" {
			env[s.Secret] = values[s.Secret]
			out = append(out, s)
			continue
		}
		var text strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.Env)) {
			value := strings.ReplaceAll(s.Env[name], "${"+s.Secret+"}", values[s.Secret])
			fmt.Fprintf(&text, "%s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
		}
		file := path.Join("/dev/shm/harvest-mcp", s.Name)
		x, err := src.Sandbox.Fleet.Exec(ctx, src.Sandbox.Account, src.Sandbox.ID,
			fleet.ExecRequest{Args: []string{"/bin/sh", "-euc", shell.PrivateFile, "sh", file}, Workdir: "/",
				Stdin: strings.NewReader(text.String())})
		if err != nil {
			return nil, nil, err
		}
		if result, err := x.Wait(ctx); err != nil || result.ReturnCode != 0 {
			return nil, nil, errors.Errorf("write the key of the MCP server %s: %v, %s", s.Name, err,
				shell.LastLines(result.Stderr, result.Why()))
		}
		s.Command, s.Env = append([]string{"/bin/sh", "-c", withKeys, file}, s.Command...), nil
		out = append(out, s)
	}
	return out, env, nil
}

// filesOf returns the files that a built-in server needs: absolute paths at the beginning of its command.
func filesOf(s mcp.Server) (files []string) {
	for i, arg := range s.Command {
		if i < 2 && path.IsAbs(arg) {
			files = append(files, arg)
		}
	}
	return files
}
