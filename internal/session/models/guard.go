package models

import (
	"context"
	"path"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// settingsFile is the agent's own settings file. It is in memory, since it may contain the token for the model.
const settingsFile = "/dev/shm/harvest-agent/settings.json"

// readSettings prints environment variables and the files that exist, each preceded by its name, with NUL after each
// part: VARIABLE… -- FILE…
const readSettings = `
while [ "$1" != -- ]; do
	eval "value=\${$1:-}"
	printf '%s\0%s\0' "$1" "$value"
	shift
done
shift
printf '\0\0'
for f; do
	[ -f "$f" ] || continue
	printf '%s\0' "$f"
	head -c 65536 "$f"
	printf '\0'
done`

// Guard prevents a repository's settings from changing the address of the agent's model. It writes settings that take
// precedence, and returns a text for each file below dirs whose settings are partly overridden.
func Guard(ctx context.Context, box shell.Sandbox, program agent.Agent, setup *agent.Setup,
	dirs ...string) (overridden []string, err error) {
	g, ok := program.(agent.Guard)
	if !ok || setup.Access == nil {
		return nil, nil
	}
	params := append(append([]string{}, g.Guarded()...), "--")
	for i, dir := range dirs {
		for _, name := range g.SettingsFiles() {
			if i == 0 || dir != dirs[0] {
				params = append(params, path.Join(dir, name))
			}
		}
	}
	out, result, err := box.Run(ctx, shell.Script{Text: readSettings, Params: params})
	if err != nil {
		return nil, err
	}
	if result.ReturnCode != 0 {
		return nil, errors.Newf(errors.Unavailable, "cannot read the repository's settings: %s",
			shell.LastLines(result.Stderr, result.Why()))
	}
	env, files := map[string]string{}, false
	given := program.Command(*setup).Env
	for parts := strings.Split(string(out), "\x00"); len(parts) > 1; parts = parts[2:] {
		name, text := parts[0], parts[1]
		if name == "" {
			files = true
			continue
		}
		if files {
			if names := g.Redirects([]byte(text)); len(names) > 0 {
				overridden = append(overridden, name+" sets "+strings.Join(names,
					", ")+": not used, the session has its own way to the model")
			}
			continue
		}
		if env[name] = text; given[name] != "" {
			env[name] = given[name]
		}
	}
	settings := g.Guard(env)
	if settings == nil {
		return overridden, nil
	}
	setup.Settings = settingsFile
	_, result, err = box.Run(ctx,
		shell.Script{Text: shell.PrivateFile, Params: []string{settingsFile},
			Stdin: string(settings)})
	if err == nil && result.ReturnCode != 0 {
		err = errors.Newf(errors.Unavailable, "cannot write the agent's settings: %s",
			shell.LastLines(result.Stderr, result.Why()))
	}
	return overridden, err
}
