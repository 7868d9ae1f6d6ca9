package bridge

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent/npm"
)

// locks has a package.json with exact versions and a package-lock.json with digests, and without addresses, for each
// agent that Harvest can install.
//
//go:embed locks
var locks embed.FS

const installTime = 15 * time.Minute

// program is an agent's command, with additions to its environment.
type program struct {
	args []string
	env  []string
}

// installed returns the agent's command, and makes it available: with the embedded lock of a name, or with a script of
// the user, unless PATH has the program. say reports that it takes time.
func installed(ctx context.Context, command []string, lock, script string, say func(string)) (program, error) {
	if err := furnish(lock); err != nil {
		return program{}, err
	}
	if _, err := exec.LookPath(programOf(command)); err == nil {
		return program{args: withNode(command)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	switch {
	case lock != "":
		dir, err := installLock(ctx, lock, say)
		if err != nil {
			return program{}, err
		}
		bin := filepath.Join(dir, "node_modules", ".bin")
		// An adapter looks for its agent in PATH. The programs of the user come first.
		return program{withNode(append([]string{filepath.Join(bin, command[0])}, command[1:]...)),
			[]string{"PATH=" + os.Getenv("PATH") + ":" + bin}}, nil
	case script != "":
		say("installs " + programOf(command))
		if err := npm.Run(ctx, "", "/bin/sh", "-c", script); err != nil {
			return program{}, err
		}
	}
	return program{args: withNode(command)}, nil
}

// programOf returns the program of a command, also of one that a shell starts.
func programOf(command []string) string {
	if text, ok := strings.CutPrefix(command[len(command)-1], "exec "); ok && command[0] == "/bin/sh" {
		if words := strings.Fields(text); len(words) > 0 {
			return words[0]
		}
	}
	return command[0]
}

// installLock installs an agent from the npm registry into the home directory, once for each lock.
func installLock(ctx context.Context, name string, say func(string)) (dir string, err error) {
	list, err := locks.ReadFile("locks/" + name + "/package.json")
	if err != nil {
		return "", errors.Newf(errors.Invalid, "Harvest cannot install %q", name)
	}
	lock, err := locks.ReadFile("locks/" + name + "/package-lock.json")
	if err != nil {
		return "", errors.Wrapf(err, "read the lock of %s", name)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.Explainf(err, errors.Invalid, "%s needs a home directory", name)
	}
	sum := sha256.Sum256(lock)
	dir = filepath.Join(home, ".local", "share", "harvest-agents", name+"-"+hex.EncodeToString(sum[:4]))
	done := filepath.Join(dir, ".installed")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	if err := npm.Fits(ctx); err != nil {
		return "", err
	}
	say("installs " + packages(list) + " from the npm registry")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", errors.Wrapf(err, "install %s", name)
	}
	for file, text := range map[string][]byte{"package.json": list, "package-lock.json": lock} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			return "", errors.Wrapf(err, "install %s", name)
		}
	}
	if err := npm.Install(ctx, dir, "ci"); err != nil {
		return "", err
	}
	return dir, errors.Wrapf(os.WriteFile(done, nil, 0o644), "install %s", name)
}

// packages returns the packages of a package.json with their versions.
func packages(list []byte) string {
	var file struct{ Dependencies map[string]string }
	_ = json.Unmarshal(list, &file)
	var all []string
	for name, version := range file.Dependencies {
		all = append(all, name+" "+version)
	}
	return strings.Join(all, " and ")
}

// withNode returns a command whose script runs with the image's Node.js, not with the one of the project.
func withNode(command []string) []string {
	path, err := exec.LookPath(command[0])
	if err != nil || npm.Node() != npm.ImageNode {
		return command
	}
	f, err := os.Open(path)
	if err != nil {
		return command
	}
	defer f.Close()
	first, _ := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	if strings.HasPrefix(first, "#!") && strings.HasSuffix(strings.TrimSpace(first), "env node") {
		return append([]string{npm.ImageNode, path}, command[1:]...)
	}
	return command
}
