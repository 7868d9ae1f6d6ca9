package devcontainer

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"
)

// Probe returns a command that prints the environment that the startup files of a user's shell set up, or nil if there
// is nothing to probe. kind is userEnvProbe of Merged; shell is the user's program, such as "/bin/bash". mark is a
// random word, with which ReadProbe finds the environment between other output. The command runs as that user, and
// should be stopped after some seconds: startup files may wait for input.
func Probe(kind, shell, mark string) []string {
	flags := map[string]string{"": "-lic", "loginInteractiveShell": "-lic", "loginShell": "-lc",
		"interactiveShell": "-ic"}
	flag, ok := flags[kind]
	if !ok || shell == "" {
		return nil
	}
	script := "echo " + mark + "; cat /proc/self/environ; echo " + mark
	if base := path.Base(shell); base == "pwsh" || base == "pwsh-preview" {
		if strings.HasPrefix(flag, "-l") {
			return []string{shell, "-Login", "-Command", script}
		}
		return []string{shell, "-Command", script}
	}
	return []string{shell, flag, script}
}

// ReadProbe returns the environment in the output of Probe, or container without one. container is the environment
// without the shell: its directories stay in PATH. Those of administrators do so for root only.
func ReadProbe(output []byte, mark string, container map[string]string, root bool) map[string]string {
	_, rest, found := bytes.Cut(output, []byte(mark+"\n"))
	if !found {
		return container
	}
	content, _, found := bytes.Cut(rest, []byte(mark))
	if !found {
		return container
	}
	env := maps.Clone(container)
	if env == nil {
		env = map[string]string{}
	}
	for pair := range strings.SplitSeq(string(content), "\x00") {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "PWD" {
			env[name] = value
		}
	}
	if own, ok := container["PATH"]; ok && own != "" {
		env["PATH"] = mergePaths(env["PATH"], own, root)
	}
	return env
}

// mergePaths returns the directories of a shell's path, with those of the container that it lacks: each follows the one
// that it follows in the container, the first is at the beginning.
func mergePaths(shell, container string, root bool) string {
	all := strings.Split(shell, ":")
	at := 0
	for dir := range strings.SplitSeq(container, ":") {
		i := slices.Index(all, dir)
		switch {
		case i >= 0:
			at = i + 1
		case root || path.Base(dir) != "sbin" && !strings.Contains(dir, "/sbin/"):
			all = slices.Insert(all, at, dir)
			at++
		}
	}
	return strings.Join(all, ":")
}
