// Package release runs an agent in a version that its image lacks. Program installs the version in the sandbox, from
// the npm registry, and then starts the agent.
package release

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/semver"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/session/agent/npm"
)

// Program is the name of the program in the sandbox.
const Program = "harvest-release"

const installTime = 15 * time.Minute

// Packaged is an agent whose program is a package of the npm registry.
type Packaged interface {
	// Package returns the name of the package; "" if there is none.
	Package() string
}

// Of returns the package of an agent in a version. It returns Invalid if the agent has none, or if the version is not
// an exact one.
func Of(name string, program any, version string) (string, error) {
	packaged, ok := program.(Packaged)
	if !ok || packaged.Package() == "" {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "Harvest does not install %s", name),
			"omit the version: the image or the agent's install script determines it")
	}
	if !semver.IsValid("v"+version) || strings.Count(version, ".") < 2 || strings.Contains(version, "+") {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "invalid version %.40q of %s", version, name),
			"use an exact version of %s, such as 1.2.3", packaged.Package())
	}
	return packaged.Package() + "@" + version, nil
}

// Wrap returns a command that installs a package where it is missing, and then runs cmd with the package's programs
// first in PATH.
func Wrap(cmd engine.Command, pkg string) engine.Command {
	kind := "program"
	if cmd.Own {
		kind = "own"
	}
	cmd.Own, cmd.Args = true, append([]string{Program, pkg, kind}, cmd.Args...)
	return cmd
}

// Part is a part of this binary that is a program of a sandbox.
type Part func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int

// Main is the program; args are those of Wrap without the first. own returns the part of this binary of a name; nil if
// there is none. It returns the exit code.
func Main(ctx context.Context, args []string, own func(name string) Part, stdin io.Reader, stdout,
	stderr io.Writer) int {
	if len(args) < 3 {
		return 2
	}
	dir, err := install(ctx, args[0])
	if err != nil {
		fmt.Fprintln(stderr, errors.Message(err))
		return 1
	}
	if err := os.Setenv("PATH", strings.Join(append(bins(dir, args[0]), os.Getenv("PATH")), ":")); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if part := own(args[2]); args[1] == "own" && part != nil {
		return part(ctx, args[3:], stdin, stdout, stderr)
	}
	path, err := exec.LookPath(args[2])
	if err == nil {
		err = syscall.Exec(path, args[2:], os.Environ())
	}
	fmt.Fprintln(stderr, err)
	return 127
}

// install installs a package into the home directory, once, and returns the directory.
func install(ctx context.Context, pkg string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.Explainf(err, errors.Invalid, "%s needs a home directory", pkg)
	}
	dir := filepath.Join(home, ".local", "share", "harvest-agents",
		strings.NewReplacer("/", "-", "@", "-").Replace(strings.TrimPrefix(pkg, "@")))
	done := filepath.Join(dir, ".installed")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	if err := npm.Fits(ctx); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", errors.Wrapf(err, "install %s", pkg)
	}
	// Packages of one platform refuse others: npm takes the sandbox for one, also where libc is not what it expects.
	if err := npm.Install(ctx, dir, "install", "--prefix", dir, "--force", pkg); err != nil {
		return "", err
	}
	return dir, errors.Wrapf(os.WriteFile(done, nil, 0o644), "install %s", pkg)
}

// bins returns the directories with the programs of a package.
func bins(dir, pkg string) []string {
	own := filepath.Join(dir, "node_modules", pkg[:strings.LastIndex(pkg, "@")])
	return []string{filepath.Join(dir, "node_modules", ".bin"), own, filepath.Join(own, "bin")}
}
